// Calls that wait for the GPU themselves, in a program that makes no other wait. After
// cudaHostUnregister, the host has the bytes that the GPU wrote last. After cudaStreamSynchronize,
// a pool has returned the memory that was freed in stream order.
#include <cuda.h>

#include "../programs/program.h"

__global__ void increment(unsigned char* bytes, size_t count) {
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) ++bytes[i];
}

// Uses the current context: cuMemHostUnregister waits for the work of the context in which the
// memory was registered.
void unregister() {
  constexpr size_t kBytes = 1 << 20, kPage = 4096;
  auto* const memory = static_cast<unsigned char*>(std::aligned_alloc(kPage, kBytes));
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<unsigned char>(i + round);
    CUDA(cudaHostRegister(memory, kBytes, cudaHostRegisterMapped));
    increment<<<1, 256>>>(memory, kBytes);
    CUDA(cudaHostUnregister(memory));
    for (size_t i = 0; i < kBytes; ++i) CHECK(memory[i] == static_cast<unsigned char>(i + round + 1));
  }
  std::free(memory);
}

void unregister_in_all_contexts() {
  int devices;
  CUDA(cudaGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    CUDA(cudaSetDevice(device));
    unregister();
  }
  CUDA(cudaSetDevice(0));
  CUcontext context;
  CHECK(cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  unregister();
  CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
  CUDA(cudaSetDevice(0));
  std::printf("unregistered memory has the GPU's bytes\n");
}

void free_in_order() {
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaMemPool_t pool;
  CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  for (int round = 0; round < 50; ++round) {
    void* memory;
    CUDA(cudaMallocAsync(&memory, 16 << 20, stream));
    CUDA(cudaMemsetAsync(memory, round, 16 << 20, stream));
    CUDA(cudaFreeAsync(memory, stream));
    CUDA(cudaStreamSynchronize(stream));
    unsigned long long reserved = 1;
    CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    CHECK(reserved == 0);
  }
  CUDA(cudaStreamDestroy(stream));
  std::printf("a wait shows what was freed\n");
}

int main() {
  unregister_in_all_contexts();
  free_in_order();
}
