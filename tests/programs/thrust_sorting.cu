// thrust: sort, sort_by_key and a custom comparison.
#include <algorithm>
#include <numeric>

#include <thrust/device_vector.h>
#include <thrust/sort.h>

#include "program.h"

struct Item {
  int key;
  float weight;
};
struct ByKeyThenWeight {
  __host__ __device__ bool operator()(const Item& a, const Item& b) const {
    return a.key != b.key ? a.key < b.key : a.weight < b.weight;
  }
};

int main() {
  Random random;
  for (const int n : {1, 1000, 100000}) {
    std::vector<int> keys(n), values(n);
    for (int& key : keys) key = static_cast<int>(random.next() << 1 ^ random.next());
    thrust::device_vector<int> device(keys.begin(), keys.end());
    thrust::sort(device.begin(), device.end());
    std::vector<int> sorted(n);
    thrust::copy(device.begin(), device.end(), sorted.begin());
    std::vector<int> expected = keys;
    std::sort(expected.begin(), expected.end());
    CHECK(sorted == expected);

    for (int& key : keys) key = static_cast<int>(random.below(500));
    std::iota(values.begin(), values.end(), 0);
    thrust::device_vector<int> device_keys(keys.begin(), keys.end());
    thrust::device_vector<int> device_values(values.begin(), values.end());
    thrust::stable_sort_by_key(device_keys.begin(), device_keys.end(), device_values.begin());
    std::vector<int> order(n);
    thrust::copy(device_values.begin(), device_values.end(), order.begin());
    std::stable_sort(values.begin(), values.end(),
                     [&keys](int a, int b) { return keys[a] < keys[b]; });
    CHECK(order == values);
    print_digest("sorted", sorted);
    print_digest("by key", order);
  }

  std::vector<Item> items(5000);
  for (int i = 0; i < 5000; ++i)
    items[i] = {static_cast<int>(random.below(50)), 0.25f * ((i * 7919) % 5000)};
  thrust::device_vector<Item> device(items.begin(), items.end());
  thrust::sort(device.begin(), device.end(), ByKeyThenWeight());
  std::vector<Item> sorted(5000);
  thrust::copy(device.begin(), device.end(), sorted.begin());
  std::sort(items.begin(), items.end(), ByKeyThenWeight());
  for (int i = 0; i < 5000; ++i) {
    CHECK(sorted[i].key == items[i].key && sorted[i].weight == items[i].weight);
  }
  print_digest("items", sorted);
}
