// Kernels of the programs in this folder. nvcc makes a fatbin of them; registration.cpp registers
// it with the runtime that the program is linked with.

#include <cooperative_groups.h>

__device__ int counter;
__device__ float table[256];
__constant__ float factors[4];
__managed__ int managed_value = 40;

extern "C" __global__ void scale(float* data, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factors[i & 3];
}

extern "C" __global__ void add(const float* a, const float* b, float* sum, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

extern "C" __global__ void count_threads() { atomicAdd(&counter, 1); }

extern "C" __global__ void add_to_managed(int amount) { managed_value += amount; }

extern "C" __global__ void fill_table(float start) { table[threadIdx.x] = start + threadIdx.x; }

extern "C" __global__ void sum_blocks(const int* values, int* sums) {
  extern __shared__ int partial[];
  partial[threadIdx.x] = values[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

// Every block reads what its neighbour wrote before the barrier of the grid.
extern "C" __global__ void exchange(int* values) {
  const auto grid = cooperative_groups::this_grid();
  if (threadIdx.x == 0) values[blockIdx.x] = static_cast<int>(blockIdx.x);
  grid.sync();
  const int neighbour = values[(blockIdx.x + 1) % gridDim.x];
  grid.sync();
  if (threadIdx.x == 0) values[blockIdx.x] = neighbour;
}

extern "C" __global__ void __launch_bounds__(128) bounded(int* out) { *out = blockDim.x; }
