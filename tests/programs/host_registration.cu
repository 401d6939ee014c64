// Registered memory that does not end at page boundaries, registered and unregistered in any order;
// memory that is shared with others and stays shared; refused calls.
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

constexpr size_t kPage = 4096;

__global__ void increment(unsigned char* bytes, size_t count) {
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) ++bytes[i];
}

// Uses all of the memory in a kernel, and in copies in both directions.
void use(unsigned char* memory, size_t bytes, cudaStream_t stream) {
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<unsigned char>(i * 7);
  void* device;
  CUDA(cudaHostGetDevicePointer(&device, memory, 0));
  CHECK(device == memory);
  increment<<<1, 256, 0, stream>>>(static_cast<unsigned char*>(device), bytes);
  CUDA(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < bytes; ++i) CHECK(memory[i] == static_cast<unsigned char>(i * 7 + 1));
  DeviceArray<unsigned char> copy(bytes);
  CUDA(cudaMemcpyAsync(copy.get(), memory, bytes, cudaMemcpyHostToDevice, stream));
  increment<<<1, 256, 0, stream>>>(copy.get(), bytes);
  CUDA(cudaMemcpyAsync(memory, copy.get(), bytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < bytes; ++i) CHECK(memory[i] == static_cast<unsigned char>(i * 7 + 2));
  cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, memory + bytes - 1));
  CHECK(attributes.type == cudaMemoryTypeHost);
}

void neighbours() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  const size_t bytes = 9 * kPage;
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(kPage, bytes));
  std::memset(memory, 0, bytes);
  // The first byte of each part lies in the last page of the part before. The fourth part lies in a
  // single page.
  const size_t bounds[] = {100,      2 * kPage + 50, 4 * kPage + 7, 7 * kPage + 11, 7 * kPage + 999,
                           bytes - 1};
  const auto part = [&](int i) { return memory + bounds[i]; };
  const auto size = [&](int i) { return bounds[i + 1] - bounds[i]; };
  const int orders[][5] = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {3, 0, 4, 2, 1}, {1, 3, 0, 2, 4}};
  for (const auto& in : orders) {
    for (const auto& out : orders) {
      bool registered[5] = {};
      for (const int i : in) {
        CUDA(cudaHostRegister(part(i), size(i), cudaHostRegisterMapped));
        registered[i] = true;
        for (int other = 0; other < 5; ++other) {
          if (registered[other]) use(part(other), size(other), stream);
        }
      }
      for (const int i : out) {
        CUDA(cudaHostUnregister(part(i)));
        registered[i] = false;
        // The memory is pageable again, and still usable.
        CUDA(cudaMemset(part(0), 0, 0));
        DeviceArray<unsigned char> copy(size(i));
        CUDA(cudaMemcpy(copy.get(), part(i), size(i), cudaMemcpyHostToDevice));
        CHECK(copy.values()[size(i) - 1] == part(i)[size(i) - 1]);
        for (int other = 0; other < 5; ++other) {
          if (registered[other]) use(part(other), size(other), stream);
        }
      }
    }
  }
  CHECK(memory[99] == 0 && memory[bytes - 1] == 0);
  std::free(memory);
  std::puts("neighbours");

  // A new registration must not find the content of an earlier registration.
  auto* pages = static_cast<unsigned char*>(
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CUDA(cudaHostRegister(pages, 2 * kPage + 10, cudaHostRegisterMapped));
  CUDA(cudaHostRegister(pages + 2 * kPage + 10, 100, cudaHostRegisterMapped));
  CUDA(cudaHostUnregister(pages));
  CHECK(mmap(pages, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) == pages);
  std::memset(pages, 77, kPage);
  CUDA(cudaHostRegister(pages, kPage, cudaHostRegisterDefault));
  DeviceArray<unsigned char> copy(kPage);
  CUDA(cudaMemcpy(copy.get(), pages, kPage, cudaMemcpyHostToDevice));
  for (const unsigned char byte : copy.values()) CHECK(byte == 77);
  use(pages + 2 * kPage + 10, 100, stream);
  CUDA(cudaHostUnregister(pages));
  CUDA(cudaHostUnregister(pages + 2 * kPage + 10));
  munmap(pages, 3 * kPage);
  CUDA(cudaStreamDestroy(stream));
  std::puts("mapped anew");
}

// Bytes written to a mapped file's memory are in the file, registered or not. Uses a file in
// memory, because newer kernels do not pin the pages of other files.
void of_a_file() {
  const int file = memfd_create("host_registration", 0);
  CHECK(file >= 0);
  const size_t bytes = 3 * kPage;
  CHECK(ftruncate(file, bytes) == 0);
  auto* memory = static_cast<unsigned char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  CHECK(memory != MAP_FAILED);
  CUDA(cudaHostRegister(memory, bytes, cudaHostRegisterDefault));
  DeviceArray<unsigned char> device(std::vector<unsigned char>(bytes, 9));
  CUDA(cudaMemcpy(memory, device.get(), bytes, cudaMemcpyDeviceToHost));
  memory[5] = 10;
  std::vector<unsigned char> found(bytes);
  CHECK(pread(file, found.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  CHECK(found[5] == 10);
  found[5] = 9;
  CHECK(found == std::vector<unsigned char>(bytes, 9));
  const unsigned char written[] = {1, 2, 3};
  CHECK(pwrite(file, written, 3, kPage) == 3);
  CUDA(cudaMemcpy(device.get(), memory, bytes, cudaMemcpyHostToDevice));
  const std::vector<unsigned char> values = device.values();
  CHECK(values[kPage] == 1 && values[kPage + 2] == 3 && values[kPage + 3] == 9);
  CUDA(cudaHostUnregister(memory));
  munmap(memory, bytes);
  close(file);
  std::puts("file");
}

// Memory of two processes.
void of_a_child() {
  auto* memory = static_cast<volatile unsigned char*>(
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto* plain = const_cast<unsigned char*>(memory);
  CUDA(cudaHostRegister(plain, kPage, cudaHostRegisterDefault));
  const pid_t child = fork();
  if (child == 0) {
    for (size_t i = 0; i < kPage; ++i) memory[i] = static_cast<unsigned char>(i);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  DeviceArray<unsigned char> device(kPage);
  CUDA(cudaMemcpy(device.get(), plain, kPage, cudaMemcpyHostToDevice));
  const std::vector<unsigned char> values = device.values();
  for (size_t i = 0; i < kPage; ++i) CHECK(values[i] == static_cast<unsigned char>(i));
  CUDA(cudaHostUnregister(plain));
  munmap(plain, kPage);
  std::puts("child");
}

// Memory that the calling thread itself writes to.
void of_the_stack() {
  DeviceArray<int> device(std::vector<int>(1000, 42));
  volatile int values[1000] = {7, 7};
  auto* plain = const_cast<int*>(values);
  CUDA(cudaHostRegister(plain, sizeof values, cudaHostRegisterDefault));
  values[999] = 7;
  CUDA(cudaMemcpyAsync(plain, device.get(), 999 * sizeof(int), cudaMemcpyDeviceToHost));
  CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < 999; ++i) CHECK(values[i] == 42);
  CUDA(cudaHostUnregister(plain));
  CHECK(values[0] == 42 && values[999] == 7);
  std::puts("stack");
}

void refusals() {
  const auto show = [](const char* what, cudaError_t got) {
    std::printf("%s: %s\n", what, cudaGetErrorName(got));
    (void)cudaGetLastError();
  };
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(kPage, 4 * kPage));
  show("nothing", cudaHostRegister(nullptr, 100, 0));
  show("no bytes", cudaHostRegister(memory, 0, 0));
  show("unknown flag", cudaHostRegister(memory, 100, 0x80));
  CUDA(cudaHostRegister(memory + 10, 2 * kPage, cudaHostRegisterPortable));
  show("again", cudaHostRegister(memory + 10, 2 * kPage, 0));
  show("part of it", cudaHostRegister(memory + kPage, 1, 0));
  show("over its end", cudaHostRegister(memory + kPage, 2 * kPage, 0));
  show("around it", cudaHostRegister(memory, 3 * kPage, 0));
  unsigned flags = 0;
  CUDA(cudaHostGetFlags(&flags, memory + 100));
  CHECK(flags & cudaHostRegisterPortable);
  CUDA(cudaHostUnregister(memory + 10));
  show("twice", cudaHostUnregister(memory + 10));
  show("never", cudaHostUnregister(memory + 3 * kPage));
  void* allocated;
  CUDA(cudaMallocHost(&allocated, 100));
  show("page-locked already", cudaHostRegister(allocated, 100, 0));
  CUDA(cudaFreeHost(allocated));
  std::free(memory);
}

int main() {
  neighbours();
  of_a_file();
  of_a_child();
  of_the_stack();
  refusals();
}
