// Shared by the benchmarks: timing, medians, and the sizes of copies. Needs only C++17.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

using Clock = std::chrono::steady_clock;

inline double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The powers of two from 4 that lie in [least, most], and 200 KB, the size at which the published
// strategy `hybrid` changes its method.
inline std::vector<uint64_t> sizes_between(uint64_t least, uint64_t most) {
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 4; bytes <= most; bytes *= 2) {
    if (bytes >= least) sizes.push_back(bytes);
    if (bytes == (128u << 10) && least <= 200'000 && most >= 200'000) sizes.push_back(200'000);
  }
  return sizes;
}
