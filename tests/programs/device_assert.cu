// A failing device assert: the synchronisation returns the error, and so do all later calls.
#include <cassert>

#include "program.h"

__global__ void check(const int* values, int limit) { assert(values[threadIdx.x] < limit); }

int main() {
  DeviceArray<int> values(std::vector<int>{1, 2, 3, 40});
  check<<<1, 4>>>(values.get(), 100);
  FINISH();
  std::printf("passed\n");
  check<<<1, 4>>>(values.get(), 10);
  CUDA(cudaGetLastError());
  EXPECT(cudaErrorAssert, cudaDeviceSynchronize());
  EXPECT(cudaErrorAssert, cudaGetLastError());
  EXPECT(cudaErrorAssert, cudaDeviceSynchronize());
  void* memory = nullptr;
  EXPECT(cudaErrorAssert, cudaMalloc(&memory, 16));
  std::printf("%s\n", cudaGetErrorString(cudaErrorAssert));
}
