// Pinned, mapped and registered host memory, seen from both sides.
#include <cstring>

#include <sys/mman.h>

#include "program.h"

__global__ void increment(int* values, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += i;
}

void run_on(int* device, const int* host, int n) {
  increment<<<(n + 127) / 128, 128>>>(device, n);
  FINISH();
  for (int i = 0; i < n; ++i) CHECK(host[i] == 1000 + i);
}

int main() {
  const int n = 3000;
  int* host;
  CUDA(cudaHostAlloc(&host, n * sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
  unsigned flags;
  CUDA(cudaHostGetFlags(&flags, host));
  CHECK((flags & cudaHostAllocPortable) != 0);
  for (int i = 0; i < n; ++i) host[i] = 1000;
  int* device;
  CUDA(cudaHostGetDevicePointer(&device, host, 0));
  run_on(device, host, n);
  // Pinned memory has one address on both sides.
  CHECK(device == host);
  std::printf("mapped\n");

  DeviceArray<int> copy(n);
  CUDA(cudaMemcpyAsync(copy.get(), host, n * sizeof(int), cudaMemcpyDefault, nullptr));
  CUDA(cudaStreamSynchronize(nullptr));
  std::memset(host + n / 2, 0, 4);
  CHECK(copy.values()[n / 2] == 1000 + n / 2);
  CUDA(cudaFreeHost(host));

  CUDA(cudaHostAlloc(&host, 1 << 16, cudaHostAllocWriteCombined));
  std::memset(host, 3, 1 << 16);
  CUDA(cudaMemcpy(copy.get(), host, n * sizeof(int), cudaMemcpyHostToDevice));
  CHECK(copy.values()[n - 1] == 0x03030303);
  CUDA(cudaFreeHost(host));

  const size_t bytes = 64 << 10;
  int* pages = static_cast<int*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(pages != MAP_FAILED);
  CUDA(cudaHostRegister(pages, bytes, cudaHostRegisterMapped));
  EXPECT(cudaErrorHostMemoryAlreadyRegistered,
         cudaHostRegister(pages, bytes, cudaHostRegisterDefault));
  cudaGetLastError();
  for (int i = 0; i < n; ++i) pages[i] = 1000;
  CUDA(cudaHostGetDevicePointer(&device, pages, 0));
  run_on(device, pages, n);
  cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, pages + 10));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CUDA(cudaHostUnregister(pages));
  EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(pages));
  cudaGetLastError();
  CUDA(cudaPointerGetAttributes(&attributes, pages));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  munmap(pages, bytes);
  std::printf("registered\n");

  int* managed;
  CUDA(cudaMallocManaged(&managed, n * sizeof(int)));
  for (int i = 0; i < n; ++i) managed[i] = 1000;
  run_on(managed, managed, n);
  CUDA(cudaMemset(managed, 1, 8));
  CUDA(cudaDeviceSynchronize());
  CHECK(managed[0] == 0x01010101 && managed[2] == 1002);
  CUDA(cudaFree(managed));
  std::printf("managed\n");
}
