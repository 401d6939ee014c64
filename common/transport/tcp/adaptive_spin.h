// AdaptiveSpin: how long a thread polls for the next data before it sleeps. A wake-up takes 10 to
// 100 us. A thread that slept in an iteration of a program's loop would make the iteration longer,
// and so also sleep in the next iteration. So a thread that was woken soon after it slept polls
// longer the next time, up to kMost times the least; after a longer sleep it polls for the least
// again. It wastes kMost times the least once per pause of the program. For one thread.
#pragma once

#include <algorithm>
#include <chrono>

namespace rcuda::transport {

class AdaptiveSpin {
 public:
  static constexpr int kMost = 4;

  // Zero: the thread never polls.
  explicit AdaptiveSpin(std::chrono::nanoseconds least) : least_(least), limit_(least) {}

  std::chrono::nanoseconds limit() const { return limit_; }
  // Data came after this time, polling and sleep together.
  void waited(std::chrono::nanoseconds time) {
    if (time < limit_) return;
    limit_ = time < kMost * least_ ? std::min(2 * limit_, kMost * least_) : least_;
  }

 private:
  const std::chrono::nanoseconds least_;
  std::chrono::nanoseconds limit_;
};

}  // namespace rcuda::transport
