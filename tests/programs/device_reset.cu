// cudaDeviceReset ends everything on a device; the program continues as if it had just started.
#include "program.h"

__device__ int counter = 10;
__constant__ int step = 1;

__global__ void count(int* out) {
  counter += step;
  *out = counter;
}

int run() {
  DeviceArray<int> out(1);
  count<<<1, 1>>>(out.get());
  FINISH();
  return out.values()[0];
}

int main() {
  CHECK(run() == 11);
  const int two = 2;
  CUDA(cudaMemcpyToSymbol(step, &two, sizeof two));
  CHECK(run() == 13);
  int *leaked, *stale;
  cudaStream_t stream;
  CUDA(cudaMalloc(&leaked, 1 << 20));
  CUDA(cudaStreamCreate(&stream));
  stale = leaked;
  for (int round = 0; round < 3; ++round) {
    CUDA(cudaDeviceReset());
    CUDA(cudaGetLastError());
    // Variables have their initial values again.
    CHECK(run() == 11);
    CHECK(run() == 12);
  }
  cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, stale));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  CUDA(cudaSetDevice(0));
  unsigned flags = 0;
  CUDA(cudaGetDeviceFlags(&flags));
  CUDA(cudaDeviceReset());
  CUDA(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  CHECK(run() == 11);
  CUDA(cudaGetDeviceFlags(&flags));
  CHECK((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync);
  CUDA(cudaDeviceReset());
  std::printf("reset\n");
}
