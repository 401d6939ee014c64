// monotonic_ns(): a time of the monotonic clock as a number of nanoseconds. Any thread; nothing
// blocks.
#pragma once

#include <chrono>
#include <cstdint>

namespace rcuda {

inline uint64_t monotonic_ns(
    std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now()) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(time.time_since_epoch()).count());
}

}  // namespace rcuda
