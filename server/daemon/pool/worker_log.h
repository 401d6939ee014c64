// WorkerLog: relays the lines that a worker writes to its stdout and stderr into the daemon's log.
//
// A worker never has the daemon's log or audit, because a program that has taken over its worker
// could close, fill or forge them. Each worker has a pipe of its own. The daemon reads complete
// lines, replaces control characters, and writes each line with its own time and the worker's
// number. When it has written kMostLines of one worker within kInterval, it still writes the bytes
// that it has already read. Then it does not read the pipe until the next interval, and lines that
// do not fit into the full pipe are lost. The bound is higher if the log has debug lines.
//
// Threads: one. Blocking: none, except as the daemon's own log does. Errors: none; a line whose
// destination fails is lost.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

class WorkerLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostLines = 200;
  static constexpr size_t kMostDebugLines = 100'000;
  static constexpr auto kInterval = std::chrono::seconds(10);

  // Makes the pipe. `for_worker`: the worker's end, which never blocks the worker.
  Status open(UniqueFd* for_worker);
  // For a successor (successor.h), which continues with the pipe and the incomplete line.
  int pipe() const { return pipe_.get(); }
  const std::string& begun() const { return partial_; }
  void go_on(UniqueFd pipe, std::string begun) {
    pipe_ = std::move(pipe);
    partial_ = std::move(begun);
  }
  void set_worker(pid_t pid) { name_ = "rcuda-worker[" + std::to_string(pid) + "]"; }

  // The descriptor to poll; -1 while the pipe is not read.
  int descriptor(Clock::time_point now) const;
  // The time at which descriptor() changes by itself; max(): never.
  Clock::time_point resumes_at() const;
  // Writes the lines that have arrived, up to a bound for one call.
  void relay(Clock::time_point now);
  // Writes the remaining lines after the worker has ended.
  void finish(Clock::time_point now);

 private:
  bool read_some(Clock::time_point now);
  void write(std::string_view line, Clock::time_point now);

  std::string name_;
  UniqueFd pipe_;
  std::string partial_;  // the beginning of a line
  Clock::time_point interval_begin_{};
  size_t lines_ = 0;  // in the interval
  bool warned_ = false;
};

}  // namespace rcuda::server
