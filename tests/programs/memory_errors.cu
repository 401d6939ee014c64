// Wrong uses of memory that fail at once: too large allocations, double frees, dangling pointers,
// wrong bounds.
#include <cuda.h>

#include "free_memory.h"
#include "program.h"

int main() {
  size_t free_bytes = 0, total_bytes = 0;
  CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  CHECK(free_bytes > 0 && free_bytes <= total_bytes);
  void* memory = nullptr;
  EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&memory, total_bytes + (1 << 30)));
  EXPECT(cudaErrorMemoryAllocation, cudaGetLastError());
  EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&memory, size_t{1} << 60));
  cudaGetLastError();
  std::printf("exhausted\n");

  // The free memory decreases and increases again.
  const size_t bytes = 256 << 20;
  CHECK(free_memory_counts(bytes));
  CUDA(cudaMalloc(&memory, bytes));
  CUDA(cudaFree(memory));

  int value = 5;
  EXPECT(cudaErrorInvalidValue, cudaFree(memory));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidValue, cudaMemcpy(memory, &value, sizeof value, cudaMemcpyHostToDevice));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidValue, cudaMemset(memory, 0, 16));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidValue, cudaFree(&value));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidValue, cudaFreeHost(&value));
  cudaGetLastError();
  CUDA(cudaFree(nullptr));
  CUDA(cudaFreeHost(nullptr));
  std::printf("refused\n");

  // Zero bytes give a null pointer.
  memory = &value;
  CUDA(cudaMalloc(&memory, 0));
  CHECK(memory == nullptr);
  CUdeviceptr pointer = 0;
  CHECK(cuMemAlloc(&pointer, 0) == CUDA_ERROR_INVALID_VALUE);
  // A pointer into the middle cannot be freed.
  CUDA(cudaMalloc(&memory, bytes));
  EXPECT(cudaErrorInvalidValue, cudaFree(static_cast<char*>(memory) + 256));
  cudaGetLastError();
  CUDA(cudaFree(memory));
  std::printf("done\n");
}
