// AdaptiveSpin: how long a thread polls for the next data before it sleeps. A wake-up takes 10 to
// 100 us. If the thread of one end must be woken, its answer is late, so the thread of the other
// end waits longer, and may sleep, too. In a program's loop, both threads may then sleep in each
// iteration. To prevent this, a thread that is woken soon after it fell asleep polls longer the
// next time, up to kMost; after a longer sleep it polls for `least` again. A pause of the program
// wastes at most kMost. For one thread.
#pragma once

#include <algorithm>
#include <chrono>

namespace rcuda::transport {

class AdaptiveSpin {
 public:
  // The longest polling. With 800 us instead of 200 us, a copy of 64 KB every 300 us takes 84 to
  // 106 us over TCP instead of 124 to 157 us (H200). Eight sessions at a time are 1 to 2 % slower.
  static constexpr std::chrono::nanoseconds kMost = std::chrono::microseconds(800);

  // If `least` is zero, the thread never polls.
  explicit AdaptiveSpin(std::chrono::nanoseconds least)
      : least_(least), most_(least.count() == 0 ? least : std::max(least, kMost)), limit_(least) {}

  std::chrono::nanoseconds limit() const { return limit_; }
  // Call it when data has arrived. `time`: how long the thread has polled and slept for the data.
  void waited(std::chrono::nanoseconds time) {
    if (time < limit_) return;
    limit_ = time < most_ ? std::min(2 * limit_, most_) : least_;
  }

 private:
  const std::chrono::nanoseconds least_, most_;
  std::chrono::nanoseconds limit_;
};

}  // namespace rcuda::transport
