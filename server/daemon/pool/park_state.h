// ParkState: the states of a session that is parked and woken, and every transition between them.
//
//   Active --park request, park_after, or displaced--> Resting --worker at rest--> Suspending
//   Suspending --NCCL has released its memory--> Measuring
//   Measuring --the size is known--> Parking --the memory is on the host--> Parked
//   Resting, Suspending, Measuring, Parking --refused--> Active
//   Parked --a command, or a wake request--> Waiting --its GPUs have room for it--> Waking
//   Waking --the memory is on the GPUs--> Active
//   Waking --the worker has found no room--> Waiting
//
// The worker moves the memory itself where it can (ParkWay::kWorker). Otherwise a helper
// (park_helper.h) lets the driver move it (ParkWay::kDriver). If a helper fails and does not report
// that the worker runs on (ParkExit::kRefused), the session ends. Sessions that are parked together
// take each step together. Pure functions.
#pragma once

#include <cstdint>

namespace rcuda::server {

enum class ParkWay : uint8_t { kDriver, kWorker };
constexpr const char* to_string(ParkWay way) {
  return way == ParkWay::kWorker ? "worker" : "driver";
}

enum class ParkState : uint8_t {
  kActive,
  kResting,     // the daemon has asked the session's worker to come to rest
  kSuspending,  // NCCL releases the memory of the session's communicators
  kMeasuring,   // kDriver: NVML has yet to report the worker's memory on its GPUs
  kParking,     // a helper, or the worker, moves the memory to the host
  kParked,
  kWaiting,  // the session waits for room on its GPUs, or for other sessions that wake
  kWaking,   // a helper, or the worker, moves the memory back
};
inline constexpr auto kLastParkState = ParkState::kWaking;

constexpr bool may_follow(ParkState from, ParkState to) {
  using State = ParkState;
  switch (to) {
    case State::kActive:
      return from != State::kActive && from != State::kParked && from != State::kWaiting;
    case State::kResting:
      return from == State::kActive;
    case State::kSuspending:
      return from == State::kResting;
    case State::kMeasuring:
      return from == State::kSuspending;
    case State::kParking:
      return from == State::kMeasuring;
    case State::kParked:
      return from == State::kParking;
    case State::kWaiting:
      return from == State::kParked || from == State::kWaking;
    case State::kWaking:
      return from == State::kWaiting;
  }
  return false;
}

// Whether the session's memory is off its GPUs, or on its way back to them.
constexpr bool is_away(ParkState state) { return state >= ParkState::kParked; }

// The state as rcuda-smi shows it; empty for an active session.
constexpr const char* to_string(ParkState state) {
  constexpr const char* kNames[] = {"",        "parking", "parking", "parking",
                                    "parking", "parked",  "waiting", "waking"};
  return kNames[static_cast<int>(state)];
}

}  // namespace rcuda::server
