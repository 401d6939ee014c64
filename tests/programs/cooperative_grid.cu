// A grid that synchronises as a whole, many times, between dependent steps.
#include <cooperative_groups.h>

#include "program.h"

namespace cg = cooperative_groups;

__global__ void smooth(int* a, int* b, int n, int rounds) {
  cg::grid_group grid = cg::this_grid();
  for (int round = 0; round < rounds; ++round) {
    for (int i = grid.thread_rank(); i < n; i += grid.size()) {
      b[i] = a[(i + n - 1) % n] + a[i] * 3 + a[(i + 1) % n];
    }
    grid.sync();
    int* swap = a;
    a = b;
    b = swap;
  }
}

__global__ void relay(int* chain, int rounds) {
  cg::grid_group grid = cg::this_grid();
  for (int round = 0; round < rounds; ++round) {
    if (blockIdx.x == round % gridDim.x && threadIdx.x == 0) *chain = *chain * 3 + blockIdx.x;
    grid.sync();
  }
}

int main() {
  int supported = 0;
  CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
  CHECK(supported == 1);
  int n = 1000, rounds = 10;
  std::vector<int> values(n), next(n);
  for (int i = 0; i < n; ++i) values[i] = i * i % 97;
  DeviceArray<int> a(values), b(n);
  int *pa = a.get(), *pb = b.get();
  void* arguments[] = {&pa, &pb, &n, &rounds};
  CUDA(cudaLaunchCooperativeKernel(smooth, dim3(7), dim3(64), arguments, 0, nullptr));
  FINISH();
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < n; ++i) {
      // Unsigned: it wraps as on the device.
      next[i] = static_cast<int>(unsigned(values[(i + n - 1) % n]) + unsigned(values[i]) * 3u +
                                 unsigned(values[(i + 1) % n]));
    }
    values.swap(next);
  }
  CHECK(a.values() == values);
  print_digest("smoothed", values);

  DeviceArray<int> chain(std::vector<int>{1});
  int* pchain = chain.get();
  int turns = 20;
  void* relay_arguments[] = {&pchain, &turns};
  CUDA(cudaLaunchCooperativeKernel(relay, dim3(6), dim3(32), relay_arguments, 0, nullptr));
  FINISH();
  unsigned expected = 1;
  for (unsigned round = 0; round < 20; ++round) expected = expected * 3 + round % 6;
  CHECK(static_cast<unsigned>(chain.values()[0]) == expected);
  std::printf("chain %u\n", expected);

  // More blocks than the device can hold at once.
  EXPECT(
      cudaErrorCooperativeLaunchTooLarge,
      cudaLaunchCooperativeKernel(relay, dim3(1 << 20), dim3(1024), relay_arguments, 0, nullptr));
  cudaGetLastError();
}
