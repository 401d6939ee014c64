// Sums and maxima three ways: shared memory, warp shuffles, atomics.
#include <algorithm>
#include <numeric>

#include "program.h"

template <unsigned kThreads>
__global__ void reduce_shared(const int* values, int n, int* sums) {
  __shared__ int partial[kThreads];
  int sum = 0;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < n; i += gridDim.x * kThreads)
    sum += values[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

__global__ void reduce_warps(const int* values, int n, int* largest, unsigned long long* total) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int most = i < n ? values[i] : INT_MIN;
  long long sum = i < n ? values[i] : 0;
  for (int distance = 16; distance > 0; distance /= 2) {
    most = max(most, __shfl_down_sync(0xffffffff, most, distance));
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  }
  if (threadIdx.x % 32 == 0) {
    atomicMax(largest, most);
    atomicAdd(total, static_cast<unsigned long long>(sum));
  }
}

int main() {
  const int n = 123457;
  Random random;
  std::vector<int> values(n);
  for (int& value : values) value = static_cast<int>(random.below(2000001)) - 1000000;
  const long long expected = std::accumulate(values.begin(), values.end(), 0ll);

  DeviceArray<int> device_values(values), sums(40), largest(std::vector<int>{INT_MIN});
  DeviceArray<unsigned long long> total(1);
  total.clear();
  reduce_shared<128><<<40, 128>>>(device_values.get(), n, sums.get());
  reduce_warps<<<(n + 191) / 192, 192>>>(device_values.get(), n, largest.get(), total.get());
  FINISH();
  const std::vector<int> partial = sums.values();
  const long long sum = std::accumulate(partial.begin(), partial.end(), 0ll);
  CHECK(sum == expected);
  CHECK(static_cast<long long>(total.values()[0]) == expected);
  CHECK(largest.values()[0] == *std::max_element(values.begin(), values.end()));
  std::printf("sum %lld, largest %d\n", sum, largest.values()[0]);
}
