// A plug-in with a kernel, a constant and its own runtime (nvcc links cudart statically).
#include <cuda_runtime.h>

__constant__ int step = 3;
__device__ int calls;

__global__ void climb(int* value) {
  *value += step * static_cast<int>(threadIdx.x + 1);
  if (threadIdx.x == 0) ++calls;
}

// Adds 3 to *value, and sets *called to the number of calls since the library was loaded. Returns a
// cudaError_t.
extern "C" __attribute__((visibility("default"))) int climb_once(int* value, int* called) {
  int* memory;
  cudaError_t error = cudaMalloc(&memory, sizeof *memory);
  if (error == cudaSuccess)
    error = cudaMemcpy(memory, value, sizeof *value, cudaMemcpyHostToDevice);
  if (error != cudaSuccess) return error;
  climb<<<1, 1>>>(memory);
  error = cudaMemcpy(value, memory, sizeof *value, cudaMemcpyDeviceToHost);
  if (error == cudaSuccess) error = cudaMemcpyFromSymbol(called, calls, sizeof calls);
  if (error == cudaSuccess) error = cudaFree(memory);
  return error;
}
