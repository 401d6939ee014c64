// The pauses between a program's attempts to reach a server: 1 s at first, then twice as long each
// time, at most 10 s. The pauses bound the load of a server that drains for hours and refuses each
// attempt. Not thread-safe; does not block.
#pragma once

#include <algorithm>
#include <chrono>

namespace rcuda::client {

class RetryPause {
 public:
  // Returns the next pause, or 0 if the program must not try again. `left`: the time until the
  // program's deadline.
  std::chrono::milliseconds next(std::chrono::milliseconds left) {
    if (left <= std::chrono::milliseconds(0)) return {};
    const std::chrono::milliseconds pause = std::min(pause_, left);
    pause_ = std::min(2 * pause_, kMost);
    return pause;
  }

 private:
  static constexpr std::chrono::milliseconds kLeast{1'000};
  static constexpr std::chrono::milliseconds kMost{10'000};

  std::chrono::milliseconds pause_ = kLeast;
};

}  // namespace rcuda::client
