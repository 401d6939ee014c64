// Vector addition, in sizes that are not multiples of the block.
#include "program.h"

__global__ void add(const float* a, const float* b, float* sum, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sum[i] = a[i] + b[i];
}

int main() {
  for (const int n : {1, 31, 1000, 100000}) {
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; ++i) {
      a[i] = 0.5f * i;
      b[i] = 3.0f - i;
    }
    DeviceArray<float> device_a(a), device_b(b), device_sum(n);
    add<<<(n + 255) / 256, 256>>>(device_a.get(), device_b.get(), device_sum.get(), n);
    FINISH();
    const std::vector<float> sum = device_sum.values();
    for (int i = 0; i < n; ++i) CHECK(sum[i] == a[i] + b[i]);
    print_digest("sum", sum);
  }
}
