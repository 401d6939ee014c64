// Page-locked memory of each kind: registered memory that other processes share, that is read-only,
// or in huge pages; many small mapped allocations; and what a child of fork() sees.
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

constexpr size_t kPage = 4096, kBytes = 64 * kPage, kCount = kBytes / sizeof(int);

__global__ void add(int* values, int more, size_t count) {
  const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += more;
}
__global__ void sum(const int* values, int* result, size_t count) {
  int all = 0;
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) all += values[i];
  atomicAdd(result, all);
}

void add_to(int* values, int more, size_t count = kCount) {
  add<<<static_cast<unsigned>((count + 255) / 256), 256>>>(values, more, count);
  FINISH();
}

void set(volatile int* values, int value, size_t count = kCount) {
  for (size_t i = 0; i < count; ++i) values[i] = value;
}
bool holds(const volatile int* values, int value, size_t count = kCount) {
  for (size_t i = 0; i < count; ++i) {
    if (values[i] != value) return false;
  }
  return true;
}

// Whether a child of fork() that does this ends normally.
template <typename Action>
bool child_survives(const Action& action) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    action();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Kernels, copies and other processes use the same bytes.
void shared(const char* name, int* memory, unsigned flags) {
  CHECK(memory != MAP_FAILED);
  set(memory, 1);
  CUDA(cudaHostRegister(memory, kBytes, flags));
  add_to(memory, 1);
  CHECK(holds(memory, 2));
  CHECK(child_survives([&] {
    if (!holds(memory, 2)) _exit(1);
    set(memory, 5);
  }));
  add_to(memory, 2);
  CHECK(holds(memory, 7));
  CHECK(child_survives([&] {
    if (!holds(memory, 7)) _exit(1);
  }));
  int* there;
  CUDA(cudaHostGetDevicePointer(&there, memory, 0));
  CHECK(there == memory);
  DeviceArray<int> device(kCount);
  CUDA(cudaMemcpyAsync(device.get(), memory, kBytes, cudaMemcpyHostToDevice));
  add_to(device.get(), 1);
  CUDA(cudaMemcpyAsync(memory, device.get(), kBytes, cudaMemcpyDeviceToHost));
  add_to(memory, 1);
  CHECK(holds(memory, 9));
  CUDA(cudaMemset(memory, 0, kBytes / 2));
  CUDA(cudaMemcpy(device.get(), memory, kBytes, cudaMemcpyDefault));
  CHECK(holds(memory, 0, kCount / 2) && device.values()[kCount - 1] == 9);
  CUDA(cudaHostUnregister(memory));
  CHECK(child_survives([&] { set(memory, 11); }));
  CHECK(holds(memory, 11));
  munmap(memory, kBytes);
  std::puts(name);
}

int* map_shared(int file) {
  CHECK(file < 0 || ftruncate(file, kBytes) == 0);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  return static_cast<int*>(memory);
}

int* map_private(int flags = 0) {
  return static_cast<int*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
}

void protections() {
  const auto show = [](const char* what, int* memory, unsigned flags) {
    std::printf("%s: %s\n", what, cudaGetErrorName(cudaHostRegister(memory, kBytes, flags)));
    (void)cudaGetLastError();
  };
  // Only the first half is writable.
  int* const memory = map_private();
  int* const half = memory + kCount / 2;
  set(memory, 3);
  CHECK(mprotect(half, kBytes / 2, PROT_READ) == 0);
  show("read-only memory", memory, cudaHostRegisterMapped);
  show("read-only memory for reading", memory, cudaHostRegisterReadOnly);
  const auto check = [&] {
    CHECK(child_survives([&] { set(memory, 4, kCount / 2); }));
    CHECK(!child_survives([&] { set(half, 4, 1); }));
    CHECK(!child_survives([&] { set(half + kCount / 2 - 1, 4, 1); }));
    CHECK(holds(memory, 3));
  };
  check();
  DeviceArray<int> result(std::vector<int>(1, 0));
  sum<<<1, 256>>>(memory, result.get(), kCount);
  FINISH();
  CHECK(result.values()[0] == 3 * static_cast<int>(kCount));
  CUDA(cudaHostUnregister(memory));
  check();
  CHECK(mprotect(half, kPage, PROT_NONE) == 0);
  show("inaccessible memory", memory, cudaHostRegisterReadOnly);
  munmap(memory, kBytes);
}

// Registered as a whole, one huge page alone, and at other bounds.
void huge_pages() {
  constexpr size_t kHuge = 2u << 20;
  auto* memory = static_cast<char*>(mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0));
  if (memory == MAP_FAILED) return;  // no huge pages are reserved on this machine
  const struct {
    size_t at, bytes;
  } parts[] = {{0, 2 * kHuge}, {kHuge, kHuge}, {kPage, kHuge}, {kPage + 100, 100'000}};
  for (const auto& part : parts) {
    auto* const values = reinterpret_cast<int*>(memory + part.at);
    const size_t count = part.bytes / sizeof(int);
    set(values, 1, count);
    CUDA(cudaHostRegister(values, part.bytes, cudaHostRegisterMapped));
    add_to(values, 1, count);
    CHECK(holds(values, 2, count));
    CUDA(cudaHostUnregister(values));
    CHECK(holds(values, 2, count));
  }
  CHECK(munmap(memory, 2 * kHuge) == 0);
}

__global__ void add_to_each(int* const* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) ++*values[i];
}

// Kernels find the allocations in a table. Some are freed and others are made between the launches.
void many_small() {
  constexpr int kMany = 300;
  std::vector<int*> all(kMany, nullptr);
  DeviceArray<int*> table(kMany);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < kMany; i += round == 0 ? 1 : round + 1) {
      if (all[i]) CUDA(cudaFreeHost(all[i]));
      const size_t bytes = 4u << (i % 14);  // up to 32 KB
      CUDA(cudaHostAlloc(&all[i], bytes, cudaHostAllocMapped));
      std::memset(all[i], 0, bytes);
      *all[i] = i;
    }
    for (int i = 0; i < kMany; ++i) *all[i] = 10 * i + round;
    table.put(all);
    add_to_each<<<(kMany + 63) / 64, 64>>>(table.get(), kMany);
    FINISH();
    for (int i = 0; i < kMany; ++i) CHECK(*all[i] == 10 * i + round + 1);
  }
  for (int* memory : all) CUDA(cudaFreeHost(memory));
  std::puts("small mapped allocations");
}

// A child has its own copy of registered memory, but shares memory that CUDA has allocated.
void forks(const char* name, int* memory) {
  set(memory, 5);
  add_to(memory, 1);
  CHECK(child_survives([&] {
    if (!holds(memory, 6)) _exit(1);
    set(memory, 77);
  }));
  std::printf("%s: %s\n", name,
              holds(memory, 6) ? "the child has its own" : "the child's writes are the parent's");
  set(memory, 6);
  add_to(memory, 1);
  CHECK(holds(memory, 7));
}

int main() {
  for (const unsigned flags : {cudaHostRegisterDefault, cudaHostRegisterMapped}) {
    shared("shared anonymous", map_shared(-1), flags);
    shared("memfd", map_shared(memfd_create("registered_kinds", 0)), flags);
    const int file = shm_open("/registered_kinds", O_CREAT | O_RDWR, 0600);
    shm_unlink("/registered_kinds");
    shared("shm_open", map_shared(file), flags);
  }
  protections();
  huge_pages();
  many_small();
  int *allocated, *mapped;
  CUDA(cudaMallocHost(&allocated, kBytes));
  forks("cudaMallocHost", allocated);
  CUDA(cudaFreeHost(allocated));
  CUDA(cudaHostAlloc(&mapped, kBytes, cudaHostAllocMapped));
  forks("cudaHostAlloc", mapped);
  CUDA(cudaFreeHost(mapped));
  int* const registered = map_private();
  CUDA(cudaHostRegister(registered, kBytes, 0));
  forks("cudaHostRegister", registered);
  CUDA(cudaHostUnregister(registered));
  munmap(registered, kBytes);
}
