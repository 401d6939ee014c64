// Asynchronous copies into shared memory and barriers that count arrivals: cp.async and mbarrier on
// sm_80 and later, and their substitutes on older GPUs.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda_pipeline.h>

#include "program.h"

namespace cg = cooperative_groups;

constexpr int kBlock = 128, kStages = 3;

// Sums a long row tile by tile while the next tiles are being copied.
__global__ void stream_sum(const int* in, int tiles, int* out) {
  __shared__ __align__(16) int stage[kStages][kBlock];
  const int* row = in + blockIdx.x * tiles * kBlock;
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < tiles) {
      __pipeline_memcpy_async(&stage[s][threadIdx.x], row + s * kBlock + threadIdx.x, sizeof(int));
    }
    __pipeline_commit();
  }
  int sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const int ahead = tile + kStages - 1;
    if (ahead < tiles) {
      __pipeline_memcpy_async(&stage[ahead % kStages][threadIdx.x],
                              row + ahead * kBlock + threadIdx.x, sizeof(int));
    }
    __pipeline_commit();
    __pipeline_wait_prior(kStages - 1);
    __syncthreads();
    sum += stage[tile % kStages][(threadIdx.x + 1) % kBlock] * (tile + 1);
    __syncthreads();
  }
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}

__global__ void group_copy(const int* in, int* out) {
  __shared__ __align__(16) int buffer[4 * kBlock];
  cg::thread_block block = cg::this_thread_block();
  cg::memcpy_async(block, buffer, in + blockIdx.x * 4 * kBlock, sizeof buffer);
  cg::wait(block);
  for (int i = threadIdx.x; i < 4 * kBlock; i += kBlock) {
    out[blockIdx.x * 4 * kBlock + i] = buffer[4 * kBlock - 1 - i];
  }
}

// Two barriers make producers and consumers alternate.
__global__ void hand_over(int* out, int rounds) {
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(Barrier) unsigned char storage[2 * sizeof(Barrier)];
  __shared__ int slot[kBlock / 2];
  Barrier* filled = reinterpret_cast<Barrier*>(storage);
  Barrier* drained = filled + 1;
  if (threadIdx.x == 0) {
    init(filled, kBlock);
    init(drained, kBlock);
  }
  __syncthreads();
  int sum = 0;
  const int i = threadIdx.x % (kBlock / 2);
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < kBlock / 2) {
      slot[i] = round * 100 + i;
      (void)filled->arrive();
      drained->arrive_and_wait();
    } else {
      filled->arrive_and_wait();
      sum += slot[kBlock / 2 - 1 - i];
      (void)drained->arrive();
    }
  }
  if (threadIdx.x >= kBlock / 2) out[i] = sum;
}

int main() {
  const int blocks = 4, tiles = 9;
  std::vector<int> in(blocks * tiles * kBlock);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * 7 % 1009);
  DeviceArray<int> device_in(in), sums(blocks * kBlock), reversed(blocks * 4 * kBlock);
  stream_sum<<<blocks, kBlock>>>(device_in.get(), tiles, sums.get());
  group_copy<<<blocks, kBlock>>>(device_in.get(), reversed.get());
  FINISH();
  const std::vector<int> out = sums.values();
  for (int b = 0; b < blocks; ++b) {
    for (int t = 0; t < kBlock; ++t) {
      int sum = 0;
      for (int tile = 0; tile < tiles; ++tile) {
        sum += in[(b * tiles + tile) * kBlock + (t + 1) % kBlock] * (tile + 1);
      }
      CHECK(out[b * kBlock + t] == sum);
    }
  }
  const std::vector<int> back = reversed.values();
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < 4 * kBlock; ++i) {
      CHECK(back[b * 4 * kBlock + i] == in[b * 4 * kBlock + 4 * kBlock - 1 - i]);
    }
  }
  print_digest("sums", out);
  print_digest("reversed", back);

  const int rounds = 25;
  DeviceArray<int> handed(kBlock / 2);
  hand_over<<<1, kBlock>>>(handed.get(), rounds);
  FINISH();
  const std::vector<int> totals = handed.values();
  for (int i = 0; i < kBlock / 2; ++i) {
    CHECK(totals[i] == 100 * rounds * (rounds - 1) / 2 + rounds * (kBlock / 2 - 1 - i));
  }
  print_digest("handed over", totals);
}
