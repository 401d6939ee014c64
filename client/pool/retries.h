// Repeated attempts to reach servers, within the time of RCUDA_WAIT: one deadline of the program
// for all its servers. The pauses between the attempts are those of retry_pause.h. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "client/pool/retry_pause.h"
#include "common/base/status.h"

namespace rcuda::client {

class Retries {
 public:
  explicit Retries(std::chrono::steady_clock::time_point deadline) : deadline_(deadline) {}

  // Call it after a failed attempt. Returns false if the error is not kUnavailable, or after the
  // deadline. Otherwise blocks for the pause and returns true. Logs the reason of the failure,
  // unless the previous attempt failed for the same reason. `while_waiting`: called about once a
  // second; may be null.
  bool again(const Status& failure, const std::function<void()>& while_waiting = nullptr);

 private:
  const std::chrono::steady_clock::time_point deadline_;
  RetryPause pauses_;
  std::string reported_;
};

}  // namespace rcuda::client
