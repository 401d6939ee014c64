// A kernel that writes to an invalid address: the error is asynchronous and ends the context.
#include <chrono>
#include <thread>

#include "program.h"

__global__ void poke(int* address) { *address = 1; }

int main(int argc, char**) {
  int* good;
  CUDA(cudaMalloc(&good, 16));
  poke<<<1, 1>>>(good);
  FINISH();
  poke<<<1, 1>>>(reinterpret_cast<int*>(argc == 1 ? 0x10 : 0x20));
  CUDA(cudaGetLastError());
  // By then the kernel has failed. The synchronisation is the first call that returns the error.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
  EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
  // The error is sticky: every kind of call returns it.
  void* memory;
  int value;
  cudaStream_t stream;
  EXPECT(cudaErrorIllegalAddress, cudaMalloc(&memory, 16));
  EXPECT(cudaErrorIllegalAddress, cudaMemcpy(&value, good, sizeof value, cudaMemcpyDeviceToHost));
  EXPECT(cudaErrorIllegalAddress, cudaStreamCreate(&stream));
  poke<<<1, 1>>>(good);
  EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
  EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
  std::printf("%s\n", cudaGetErrorString(cudaErrorIllegalAddress));
}
