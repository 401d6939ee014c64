// SessionLoop: reads a session's commands in order and has them carried out, until the session
// ends.
//
// The thread that calls run() is the executor thread. It reads a command, checks its header, makes
// its context current and hands it to the generated or custom handler; between commands it looks
// after completions. It never waits for a GPU: while completions are pending and no command comes
// it polls, and the longer nothing happens the longer it sleeps between polls; with nothing pending
// it sleeps in Link::wait. Everything about one session is in here, so a process may run several,
// on threads (tests do). Errors: run() returns ok when the client ended the session or stop() was
// called, kUnavailable when the client or the Link is gone, kProtocol when a command cannot be.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"
#include "server/executor/executor.h"

namespace rcuda::server {

struct SessionLoopOptions {
  // How long to poll for the next command before sleeping: a wake-up costs some 10 µs. Short where
  // the spinner may be what keeps the client from running.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
};

class SessionLoop {
 public:
  SessionLoop(const SessionResources& resources, const SessionLoopOptions& options);
  ~SessionLoop();

  // Exposes the staging region, tells the client that the session is ready, and serves it.
  Status run();
  // Ends run() soon; from any thread.
  void stop();

  Executor& executor() { return executor_; }

 private:
  using Clock = std::chrono::steady_clock;

  Status serve();
  Status handle(std::span<const std::byte> frame);
  Status carry_out(const wire::CommandHeader& header, std::span<const std::byte> body);
  void postpone(const wire::CommandHeader& header, std::span<const std::byte> body);
  HandlerResult dispatch(const wire::CommandHeader& header, std::span<const std::byte> body,
                         const ReplyTarget& target);
  Status idle();
  void flush_trace();

  transport::Link& link_;
  const SessionLoopOptions options_;
  Executor executor_;
  wire::RingReader ring_;
  std::atomic<bool> stop_{false};
  bool ended_ = false;
  Status failure_;  // of a command that was carried out between others
  Clock::time_point last_activity_;
  std::vector<std::byte> reply_;
  std::vector<wire::TraceEvent> trace_;
};

}  // namespace rcuda::server
