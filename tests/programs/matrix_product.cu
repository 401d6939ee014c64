// A tiled matrix product in shared memory, checked against the CPU; the entries keep it exact.
#include "program.h"

constexpr int kTile = 16;

__global__ void multiply(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int at = 0; at < k; at += kTile) {
    const int x = at + threadIdx.x, y = at + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < m && x < k ? a[row * k + x] : 0;
    tile_b[threadIdx.y][threadIdx.x] = y < k && column < n ? b[y * n + column] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

int main() {
  const int m = 70, n = 45, k = 100;
  Random random;
  std::vector<float> a(m * k), b(k * n);
  for (float& x : a) x = static_cast<int>(random.below(21)) - 10;
  for (float& x : b) x = static_cast<int>(random.below(21)) - 10;
  DeviceArray<float> device_a(a), device_b(b), device_c(m * n);
  const dim3 grid((n + kTile - 1) / kTile, (m + kTile - 1) / kTile), block(kTile, kTile);
  multiply<<<grid, block>>>(device_a.get(), device_b.get(), device_c.get(), m, n, k);
  FINISH();
  const std::vector<float> c = device_c.values();
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      float sum = 0;
      for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
      CHECK(c[row * n + column] == sum);
    }
  }
  print_digest("product", c);
}
