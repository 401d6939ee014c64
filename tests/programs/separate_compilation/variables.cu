#include "separate_compilation/parts.h"

__device__ int visits;
__device__ int offsets[4] = {10, 20, 30, 40};
__constant__ float factors[3] = {0.5f, 1.5f, 2.5f};
static __device__ int own = 1000;  // distinct from the variable `own` of main.cu

__global__ static void other(int* out) {
  atomicAdd(&visits, 1);
  out[threadIdx.x] = own + offsets[threadIdx.x % 4];
}

void run_other_kernel() {
  DeviceArray<int> out(32);
  other<<<1, 32>>>(out.get());
  FINISH();
  print_digest("other", out.values());
}
