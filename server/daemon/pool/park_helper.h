// ParkHelper: a process that moves the GPU memory of a worker to the host, or back, by the driver's
// cuCheckpointProcess*. These act on another process, so the worker has no part in it, and the
// daemon needs no CUDA. The helper runs this binary (server/worker/park_process.h) with the
// daemon's rights, does one thing, and ends.
//
// Threads: the daemon's only thread. Blocking: the destructor, for a second at most, until the process
// that it has killed is gone. Errors: start() returns the system's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/protocol/settings.h"
#include "server/worker/park_process.h"

namespace rcuda::server {

class ParkHelper {
 public:
  using Clock = std::chrono::steady_clock;
  struct Outcome {
    ParkExit how{};
    std::string why;  // empty for kDone
  };

  // `bytes`: that it moves. It is killed if it takes much longer than a driver needs for them.
  static Result<ParkHelper> start(const Settings& settings, ParkTask task, pid_t worker,
                                  uint64_t bytes);
  ~ParkHelper();
  ParkHelper(ParkHelper&& other) noexcept;
  ParkHelper& operator=(ParkHelper&&) = delete;

  pid_t pid() const { return pid_; }
  pid_t worker() const { return worker_; }
  int descriptor() const { return process_.get(); }  // readable when it has ended
  Clock::time_point deadline() const { return deadline_; }
  // The outcome, once; none while it runs. After the deadline it is killed, and has failed.
  std::optional<Outcome> poll();
  // Whether it did not end in time.
  bool has_failed() const { return is_late_; }
  // Whether its process is gone. One that is stuck in the driver outlives its outcome.
  bool is_gone() const { return pid_ < 0; }

 private:
  ParkHelper() = default;

  pid_t pid_ = -1, worker_ = -1;
  UniqueFd process_;  // pidfd
  UniqueFd says_;     // the helper's stdout
  Clock::time_point deadline_;
  bool is_late_ = false;  // and was killed; its outcome is reported
};

}  // namespace rcuda::server
