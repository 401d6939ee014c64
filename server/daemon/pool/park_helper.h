// ParkHelper: a process that moves the GPU memory of workers to the host, or back, by the driver's
// cuCheckpointProcess*. These functions act on another process, so the workers take no part, and
// the daemon needs no CUDA. The helper runs this binary (server/worker/park_process.h), becomes the
// workers' user, parks or wakes the workers together, and ends.
//
// Threads: the daemon's only thread. Blocking: the destructor, for a second at most, until the
// process that it has killed is gone. Errors: start() returns those of the system.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/protocol/settings.h"
#include "server/worker/park_process.h"

namespace rcuda::server {

// The longest time that a helper, or a worker, may take to move `bytes`.
std::chrono::seconds longest_move(uint64_t bytes);

class ParkHelper {
 public:
  using Clock = std::chrono::steady_clock;
  struct Outcome {
    ParkExit how{};
    std::string why;  // empty for kDone
  };

  // `bytes`: the number of bytes that the helper moves. A helper that takes longer than
  // longest_move() is killed.
  // `moves`: the GPUs that change, for kWake. `environment`: the variables that the workers have
  // besides the settings.
  static Result<ParkHelper> start(const Settings& settings, ParkTask task,
                                  std::vector<pid_t> workers, uint64_t bytes, const GpuMoves& moves,
                                  const std::vector<std::string>& environment);
  ~ParkHelper();
  ParkHelper(ParkHelper&& other) noexcept;
  ParkHelper& operator=(ParkHelper&&) = delete;

  pid_t pid() const { return pid_; }
  bool moves(pid_t worker) const {
    return std::find(workers_.begin(), workers_.end(), worker) != workers_.end();
  }
  int descriptor() const { return process_.get(); }  // readable when the helper has ended
  Clock::time_point deadline() const { return deadline_; }
  // Returns the outcome once, and none while the helper runs. A helper that is still running at the
  // deadline has failed, and is killed.
  std::optional<Outcome> poll();
  // Whether the helper did not end in time.
  bool has_failed() const { return is_late_; }
  // Whether the helper's process is gone. A process that is stuck in the driver is still there
  // after poll() has returned the outcome.
  bool is_gone() const { return pid_ < 0; }

 private:
  ParkHelper() = default;

  pid_t pid_ = -1;
  std::vector<pid_t> workers_;
  UniqueFd process_;  // pidfd
  UniqueFd says_;     // the helper's stdout
  Clock::time_point deadline_;
  bool is_late_ = false;  // killed at the deadline, which poll() has reported
};

}  // namespace rcuda::server
