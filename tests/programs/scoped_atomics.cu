// cuda::atomic_ref in every scope and order, messages between blocks, narrow and half atomics.
#include <cuda/atomic>
#include <cuda_fp16.h>

#include "program.h"

template <cuda::thread_scope kScope>
__global__ void combine(int* values, unsigned long long* wide) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  cuda::atomic_ref<int, kScope> sum(values[0]), low(values[1]), high(values[2]), bits(values[3]),
      odd(values[4]), claimed(values[5]);
  sum.fetch_add(i, cuda::memory_order_relaxed);
  sum.fetch_sub(1, cuda::memory_order_acq_rel);
  low.fetch_min(100 - i);
  high.fetch_max(i * 3);
  bits.fetch_or(1 << (i % 31));
  odd.fetch_xor(i * 7919);
  int seen = claimed.load();
  while (!claimed.compare_exchange_weak(seen, seen + 2)) {
  }
  cuda::atomic_ref<unsigned long long, kScope> total(*wide);
  total.fetch_add(1ull << 33 | static_cast<unsigned>(i));
}

template <cuda::thread_scope kScope>
void run_scope(const char* name, int blocks) {
  DeviceArray<int> values(std::vector<int>{0, 1000, 0, 0, 0, 0});
  DeviceArray<unsigned long long> wide(1);
  wide.clear();
  combine<kScope><<<blocks, 96>>>(values.get(), wide.get());
  FINISH();
  std::printf("%s:", name);
  for (const int value : values.values()) std::printf(" %d", value);
  std::printf(" %llx\n", wide.values()[0]);
}

// Block 0 writes data and raises a flag; the others wait for it and then must see the data.
__global__ void publish(int* data, int* flag, int* out) {
  cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) data[i] = i * i;
    __syncthreads();
    if (threadIdx.x == 0) ready.store(1, cuda::memory_order_release);
  } else {
    if (threadIdx.x == 0) {
      while (ready.load(cuda::memory_order_acquire) == 0) __nanosleep(50);
    }
    __syncthreads();
    int sum = 0;
    for (int i = threadIdx.x; i < 256; i += blockDim.x) sum += data[i];
    atomicAdd(&out[blockIdx.x], sum);
  }
}

__global__ void narrow(unsigned short* shorts, __half2* pair, float* total, int* block_total) {
  __shared__ int local;
  if (threadIdx.x == 0) local = 0;
  __syncthreads();
  unsigned short seen = shorts[threadIdx.x % 4], assumed;
  do {
    assumed = seen;
    seen = atomicCAS(&shorts[threadIdx.x % 4], assumed, static_cast<unsigned short>(assumed + 1));
  } while (seen != assumed);
  atomicAdd(pair, __floats2half2_rn(1.0f, 0.5f));
  atomicAdd_system(total, 0.25f);
  atomicAdd_block(&local, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(block_total, local);
}

int main() {
  run_scope<cuda::thread_scope_system>("system", 4);
  run_scope<cuda::thread_scope_device>("device", 4);
  run_scope<cuda::thread_scope_block>("block", 1);

  DeviceArray<int> data(256), flag(1), out(8);
  flag.clear();
  out.clear();
  publish<<<8, 64>>>(data.get(), flag.get(), out.get());
  FINISH();
  for (int b = 1; b < 8; ++b) CHECK(out.values()[b] == 255 * 256 * 511 / 6);

  DeviceArray<unsigned short> shorts(4);
  DeviceArray<__half2> pair(1);
  DeviceArray<float> total(1);
  DeviceArray<int> block_total(1);
  shorts.clear();
  pair.clear();
  total.clear();
  block_total.clear();
  narrow<<<3, 128>>>(shorts.get(), pair.get(), total.get(), block_total.get());
  FINISH();
  for (const unsigned short value : shorts.values()) CHECK(value == 96);
  const __half2 halves = pair.values()[0];
  std::printf("%g %g %g %d\n", __low2float(halves), __high2float(halves), total.values()[0],
              block_total.values()[0]);
}
