// 128-bit integers on the device against the same operations on the host.
#include "program.h"

using Wide = unsigned __int128;

struct Row {
  Wide a, b;
};

__host__ __device__ inline Wide mix(Wide a, Wide b) {
  const __int128 sa = static_cast<__int128>(a), sb = static_cast<__int128>(b | 1);
  Wide h = a + b;
  h = h * 3 ^ (a - b) ^ (a * b);
  h = h * 5 ^ (a / (b | 1)) ^ (a % (b | 1));
  h = h * 7 ^ static_cast<Wide>(sa / sb) ^ static_cast<Wide>(sa >> (b & 127));
  h = h * 11 ^ (a << (b & 127)) ^ (a >> (a & 127));
  h = h * 13 ^ (a < b) ^ static_cast<Wide>(sa < sb) << 1;
  return h;
}

__global__ void run(const Row* rows, Wide* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = mix(rows[i].a, rows[i].b);
}

int main() {
  const int n = 1000;
  Random random(3);
  std::vector<Row> rows(n);
  const auto any = [&random] {
    Wide value = 0;
    for (int i = 0; i < 5; ++i) value = value << 31 ^ random.next();
    return value >> random.below(120);
  };
  for (Row& row : rows) row = {any(), any()};
  DeviceArray<Row> device(rows);
  DeviceArray<Wide> out(n);
  run<<<(n + 63) / 64, 64>>>(device.get(), out.get(), n);
  FINISH();
  const std::vector<Wide> values = out.values();
  for (int i = 0; i < n; ++i) CHECK(values[i] == mix(rows[i].a, rows[i].b));
  print_digest("wide", values);
}
