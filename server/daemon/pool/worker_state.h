// WorkerState: the states of a worker, and every transition between them (may_follow()).
//
//   Starting --WorkerReady--> Idle --session--> Busy
//   Starting --StartFailure, or not needed--> Stopping
//   Starting --start timeout--> Hanging
//   Idle --not needed, or did not receive its session--> Stopping
//   any but Ended --its process ends, or the server leaves it behind--> Ended
//
// A session is over when its worker leaves Busy, for any reason: WorkerPool::enter() then counts
// and records it, and releases its permit. Pure functions.
#pragma once

#include <cstdint>

namespace rcuda::server {

enum class WorkerState : uint8_t {
  kStarting,  // its driver starts
  kIdle,      // waits for a session
  kBusy,      // has a session, until its process ends
  kStopping,  // has no session and is to end
  kHanging,   // did not start in time and is killed, but may be stuck in the driver
  kEnded,     // has ended. It stays in this state only while a tracer (a debugger) has its status
              // and waitpid() does not report it
};
inline constexpr auto kLastWorkerState = WorkerState::kEnded;

constexpr bool may_follow(WorkerState from, WorkerState to) {
  using State = WorkerState;
  if (to == State::kEnded) return from != State::kEnded;
  if (from == State::kIdle) return to == State::kBusy || to == State::kStopping;
  return from == State::kStarting &&
         (to == State::kIdle || to == State::kStopping || to == State::kHanging);
}

constexpr const char* to_string(WorkerState state) {
  constexpr const char* kNames[] = {"starting", "idle", "busy", "stopping", "hanging", "ended"};
  return kNames[static_cast<int>(state)];
}

}  // namespace rcuda::server
