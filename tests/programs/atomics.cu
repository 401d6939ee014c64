// Every atomic operation in global and shared memory, and a histogram. The results do not depend on
// the order of the operations.
#include "program.h"

struct Totals {
  int add, sub, low, high;
  unsigned inc, dec, all, any, odd, cas;
  unsigned long long add64, high64, cas64;
  float add_float;
  double add_double;
};

__global__ void combine(Totals* totals, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&totals->add, i);
  atomicSub(&totals->sub, 2 * i);
  atomicMin(&totals->low, -i);
  atomicMax(&totals->high, i ^ 0x55);
  atomicInc(&totals->inc, 999);
  atomicDec(&totals->dec, 776);
  atomicAnd(&totals->all, ~(1u << (i % 20)));
  atomicOr(&totals->any, 1u << (i % 23));
  atomicXor(&totals->odd, i * 2654435761u);
  atomicAdd(&totals->add64, static_cast<unsigned long long>(i) << 32);
  atomicMax(&totals->high64, static_cast<unsigned long long>(i) * i);
  atomicAdd(&totals->add_float, 0.5f);
  atomicAdd(&totals->add_double, 0.25 * i);
  unsigned seen = totals->cas, assumed;
  do {
    assumed = seen;
    seen = atomicCAS(&totals->cas, assumed, assumed + 3);
  } while (seen != assumed);
  unsigned long long seen64 = totals->cas64, assumed64;
  do {
    assumed64 = seen64;
    seen64 = atomicCAS(&totals->cas64, assumed64, assumed64 + (1ull << 33));
  } while (seen64 != assumed64);
}

__global__ void exchange(int* slot, int* seen, int n) {
  const int i = threadIdx.x;
  if (i < n) seen[i] = atomicExch(slot, i);
}

__global__ void histogram(const unsigned char* data, int n, unsigned* bins) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&local[data[i]], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

int main() {
  const int n = 5000;
  Totals start = {};
  start.dec = 100;
  start.all = ~0u;
  DeviceArray<Totals> totals(std::vector<Totals>{start});
  combine<<<40, 128>>>(totals.get(), n);
  FINISH();
  const Totals t = totals.values()[0];
  unsigned odd = 0;
  int high = 0;
  for (int i = 0; i < n; ++i) {
    odd ^= i * 2654435761u;
    high = i > 0 && (i ^ 0x55) > high ? (i ^ 0x55) : high;
  }
  const int sum = n * (n - 1) / 2;
  CHECK(t.add == sum && t.sub == -2 * sum && t.low == -(n - 1) && t.high == high);
  CHECK(t.inc == n % 1000 && t.all == ~0xfffffu && t.any == 0x7fffffu && t.odd == odd);
  CHECK(t.dec == (100 + 777 * 10 - n) % 777);
  CHECK(t.add64 == static_cast<unsigned long long>(sum) << 32);
  CHECK(t.high64 == static_cast<unsigned long long>(n - 1) * (n - 1));
  CHECK(t.add_float == 0.5f * n && t.add_double == 0.25 * sum);
  CHECK(t.cas == 3u * n && t.cas64 == static_cast<unsigned long long>(n) << 33);
  std::printf("totals %d %d %d %d %u %u %08x %08x %08x\n", t.add, t.sub, t.low, t.high, t.inc,
              t.dec, t.all, t.any, t.odd);

  // In any order, each value except one is seen by the next thread.
  DeviceArray<int> slot(std::vector<int>{-1}), seen(64);
  exchange<<<1, 64>>>(slot.get(), seen.get(), 64);
  FINISH();
  int seen_sum = slot.values()[0];
  for (const int value : seen.values()) seen_sum += value;
  CHECK(seen_sum == 63 * 64 / 2 - 1);

  Random random;
  std::vector<unsigned char> data(100000);
  std::vector<unsigned> expected(256);
  for (unsigned char& byte : data)
    ++expected[byte = static_cast<unsigned char>(random.next() & random.next())];
  DeviceArray<unsigned char> device_data(data);
  DeviceArray<unsigned> bins(256);
  bins.clear();
  histogram<<<24, 96>>>(device_data.get(), static_cast<int>(data.size()), bins.get());
  FINISH();
  CHECK(bins.values() == expected);
  print_digest("histogram", bins.values());
}
