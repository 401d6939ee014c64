// An inclusive scan over several blocks: scans each block, scans the totals, adds them.
#include <numeric>

#include "program.h"

constexpr int kBlock = 256;

__global__ void scan_blocks(unsigned* values, int n, unsigned* totals) {
  __shared__ unsigned warp_totals[kBlock / 32];
  const int i = blockIdx.x * kBlock + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned sum = i < n ? values[i] : 0;
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffff, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) warp_totals[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_totals[w];
  if (i < n) values[i] = sum;
  if (threadIdx.x == kBlock - 1 && totals != nullptr) totals[blockIdx.x] = sum;
}

__global__ void add_totals(unsigned* values, int n, const unsigned* totals) {
  const int i = (blockIdx.x + 1) * kBlock + threadIdx.x;
  if (i < n) values[i] += totals[blockIdx.x];
}

int main() {
  const int n = 50000, blocks = (n + kBlock - 1) / kBlock;
  static_assert(blocks <= kBlock);
  Random random;
  std::vector<unsigned> values(n), expected(n);
  for (unsigned& value : values) value = random.next();
  std::partial_sum(values.begin(), values.end(), expected.begin());
  DeviceArray<unsigned> device(values), totals(blocks);
  scan_blocks<<<blocks, kBlock>>>(device.get(), n, totals.get());
  scan_blocks<<<1, kBlock>>>(totals.get(), blocks, nullptr);
  add_totals<<<blocks - 1, kBlock>>>(device.get(), n, totals.get());
  FINISH();
  CHECK(device.values() == expected);
  print_digest("scan", device.values());
}
