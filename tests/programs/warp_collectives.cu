// shfl, vote, match and syncwarp on full and partial warps, in straight and divergent code.
#include <cooperative_groups.h>

#include "program.h"

namespace cg = cooperative_groups;

constexpr int kResults = 20;

__global__ void collectives(const int* in, unsigned* out) {
  const unsigned lane = threadIdx.x % 32, thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned all = 0xffffffff;
  const int value = in[thread];
  unsigned* o = out + kResults * thread;
  o[0] = __shfl_sync(all, value, (lane * 7) & 31);
  o[1] = __shfl_up_sync(all, value, 3);
  o[2] = __shfl_down_sync(all, value, 5, 16);
  o[3] = __shfl_xor_sync(all, value, 9);
  o[4] = __shfl_sync(all, value, 2, 8);
  o[5] =
      static_cast<unsigned>(__shfl_sync(all, static_cast<long long>(value) << 33, lane ^ 1) >> 32);
  o[6] = __float_as_uint(__shfl_xor_sync(all, value * 0.5f, 16));
  o[7] = __ballot_sync(all, value & 1);
  o[8] = __any_sync(all, value == 3) + 2 * __all_sync(all, value >= 0);
  o[9] = __match_any_sync(all, value & 7);
  int uniform;
  o[10] = __match_all_sync(all, value / 1000, &uniform) + uniform;
  o[11] = __match_any_sync(all, static_cast<unsigned long long>(value & 3) << 40);

  // Two sides of a branch, each with its own mask.
  if (lane < 12) {
    o[12] = __ballot_sync(0xfff, value & 2) + __shfl_sync(0xfff, value, 11);
  } else {
    o[12] = __ballot_sync(0xfffff000, value & 4) - __shfl_xor_sync(0xfffff000, value, 1);
  }
  __syncwarp();
  unsigned odd = 0;
  if (lane & 1) {
    cg::coalesced_group group = cg::coalesced_threads();
    odd = group.size() * 100 + group.thread_rank();
    odd += group.shfl(value, 0) + group.any(value > 5);
  }
  o[13] = odd;

  cg::thread_block_tile<8> tile = cg::tiled_partition<8>(cg::this_thread_block());
  int sum = value;
  for (int step = 4; step > 0; step /= 2) sum += tile.shfl_xor(sum, step);
  o[14] = sum + tile.meta_group_rank();

  // A loop that lanes leave one after the other.
  unsigned rounds = 0, remaining = all;
  for (unsigned i = 0; i <= lane; ++i) {
    const unsigned mask = i == 0 ? all : all << i;
    rounds += __popc(__ballot_sync(mask, true));
    remaining = mask;
  }
  o[15] = rounds;
  o[16] = remaining;
  unsigned lane_lt, lane_ge;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lane_lt));
  asm("mov.u32 %0, %%lanemask_ge;" : "=r"(lane_ge));
  o[17] = lane_lt ^ lane_ge;
#if __CUDA_ARCH__ >= 800
  o[18] = __reduce_add_sync(all, value) ^ __reduce_max_sync(all, value) ^
          __reduce_xor_sync(all, static_cast<unsigned>(value));
#else
  int total = value, most = value;
  unsigned parity = value;
  for (int step = 16; step > 0; step /= 2) {
    total += __shfl_xor_sync(all, total, step);
    most = max(most, __shfl_xor_sync(all, most, step));
    parity ^= __shfl_xor_sync(all, parity, step);
  }
  o[18] = total ^ most ^ parity;
#endif
  o[19] = __syncthreads_count(value & 1) + 1000 * __syncthreads_or(value == 77) +
          2000 * __syncthreads_and(value >= 0);
}

int main() {
  const int blocks = 3, threads = 96;
  Random random;
  std::vector<int> in(blocks * threads);
  for (int& value : in) value = static_cast<int>(random.below(100));
  DeviceArray<int> device_in(in);
  DeviceArray<unsigned> device_out(in.size() * kResults);
  device_out.clear();
  collectives<<<blocks, threads>>>(device_in.get(), device_out.get());
  FINISH();
  const std::vector<unsigned> out = device_out.values();
  for (int i = 0; i < kResults; ++i) {
    std::vector<unsigned> column;
    for (size_t t = 0; t < in.size(); ++t) column.push_back(out[kResults * t + i]);
    std::printf("result %d: %016llx\n", i, static_cast<unsigned long long>(digest(column)));
  }
  for (int t = 0; t < threads; ++t) CHECK(out[kResults * t] == in[t / 32 * 32 + (t * 7 & 31)]);
}
