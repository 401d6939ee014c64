// CUB's cooperative primitives within warps and blocks.
#include <algorithm>
#include <numeric>

#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_scan.cuh>

#include "program.h"

constexpr int kThreads = 128, kItems = 4, kTile = kThreads * kItems;

__global__ void primitives(const int* in, int* sorted, int* scanned, int* totals, int* warp_scans) {
  using Load = cub::BlockLoad<int, kThreads, kItems, cub::BLOCK_LOAD_TRANSPOSE>;
  using Store = cub::BlockStore<int, kThreads, kItems, cub::BLOCK_STORE_TRANSPOSE>;
  using Sort = cub::BlockRadixSort<int, kThreads, kItems>;
  using Scan = cub::BlockScan<int, kThreads>;
  using Reduce = cub::BlockReduce<int, kThreads>;
  using WarpScan = cub::WarpScan<int>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Store::TempStorage store;
    typename Sort::TempStorage sort;
    typename Scan::TempStorage scan;
    typename Reduce::TempStorage reduce;
    typename WarpScan::TempStorage warp[kThreads / 32];
  } storage;
  int items[kItems], copy[kItems];
  Load(storage.load).Load(in + blockIdx.x * kTile, items);
  for (int i = 0; i < kItems; ++i) copy[i] = items[i];
  __syncthreads();
  Scan(storage.scan).ExclusiveSum(copy, copy);
  __syncthreads();
  Store(storage.store).Store(scanned + blockIdx.x * kTile, copy);
  __syncthreads();
  const int total = Reduce(storage.reduce).Sum(items);
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
  __syncthreads();
  int warp_sum;
  WarpScan(storage.warp[threadIdx.x / 32]).InclusiveSum(items[0], warp_sum);
  warp_scans[blockIdx.x * kThreads + threadIdx.x] = warp_sum;
  __syncthreads();
  Sort(storage.sort).Sort(items);
  __syncthreads();
  Store(storage.store).Store(sorted + blockIdx.x * kTile, items);
}

int main() {
  const int blocks = 5, n = blocks * kTile;
  Random random(11);
  std::vector<int> in(n);
  for (int& value : in) value = static_cast<int>(random.below(20000)) - 10000;
  DeviceArray<int> device(in), sorted(n), scanned(n), totals(blocks), warp_scans(blocks * kThreads);
  primitives<<<blocks, kThreads>>>(device.get(), sorted.get(), scanned.get(), totals.get(),
                                   warp_scans.get());
  FINISH();
  std::vector<int> expected = in, scan(n);
  for (int b = 0; b < blocks; ++b) {
    const auto begin = expected.begin() + b * kTile;
    CHECK(totals.values()[b] == std::accumulate(begin, begin + kTile, 0));
    std::exclusive_scan(begin, begin + kTile, scan.begin() + b * kTile, 0);
    std::sort(begin, begin + kTile);
  }
  CHECK(sorted.values() == expected);
  CHECK(scanned.values() == scan);
  print_digest("sorted", expected);
  print_digest("scanned", scan);
  print_digest("warps", warp_scans.values());
}
