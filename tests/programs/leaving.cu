// A program that frees nothing: at its end, objects of every kind exist and work is queued. A
// global object frees memory after main.
#include "program.h"

struct Late {
  void* memory = nullptr;
  ~Late() {
    // The runtime may have ended already, so any result is right; the call must not crash.
    cudaFree(memory);
    std::printf("late\n");
  }
} late;

__global__ void busy(int* values, int rounds) {
  for (int i = 0; i < rounds; ++i) atomicAdd(values, 1);
}

int main() {
  CUDA(cudaMalloc(&late.memory, 1 << 20));
  int *values, *pinned;
  CUDA(cudaMalloc(&values, 64));
  CUDA(cudaMallocHost(&pinned, 64));
  cudaStream_t stream;
  cudaEvent_t event;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreate(&event));
  for (int i = 0; i < 20; ++i) {
    busy<<<4, 32, 0, stream>>>(values, 200);
    CUDA(cudaMemcpyAsync(pinned, values, 64, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaEventRecord(event, stream));
  }
  CUDA(cudaGetLastError());
  std::printf("leaving\n");
}
