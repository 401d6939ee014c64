// thrust: reductions, scans, unique and copy_if.
#include <algorithm>
#include <numeric>

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/unique.h>

#include "program.h"

struct IsOdd {
  __host__ __device__ bool operator()(int x) const { return x & 1; }
};

int main() {
  const int n = 54321;
  Random random;
  std::vector<int> values(n), out(n);
  for (int& value : values) value = static_cast<int>(random.below(30));
  thrust::device_vector<int> device(values.begin(), values.end()), result(n);

  const int sum = thrust::reduce(device.begin(), device.end());
  CHECK(sum == std::accumulate(values.begin(), values.end(), 0));
  const int most = thrust::reduce(device.begin(), device.end(), 0, thrust::maximum<int>());
  CHECK(most == 29);

  thrust::inclusive_scan(device.begin(), device.end(), result.begin());
  thrust::copy(result.begin(), result.end(), out.begin());
  std::vector<int> expected(n);
  std::partial_sum(values.begin(), values.end(), expected.begin());
  CHECK(out == expected);
  print_digest("inclusive", out);
  thrust::exclusive_scan(device.begin(), device.end(), result.begin(), 7);
  thrust::copy(result.begin(), result.end(), out.begin());
  for (int i = 0; i < n; ++i) CHECK(out[i] == expected[i] - values[i] + 7);

  const auto odd_end = thrust::copy_if(device.begin(), device.end(), result.begin(), IsOdd());
  out.resize(odd_end - result.begin());
  thrust::copy(result.begin(), odd_end, out.begin());
  expected.clear();
  for (const int value : values) {
    if (value & 1) expected.push_back(value);
  }
  CHECK(out == expected);
  print_digest("odd", out);

  const auto unique_end = thrust::unique(device.begin(), device.end());
  out.resize(unique_end - device.begin());
  thrust::copy(device.begin(), unique_end, out.begin());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  CHECK(out == values);
  print_digest("unique", out);
  std::printf("sum %d, most %d\n", sum, most);
}
