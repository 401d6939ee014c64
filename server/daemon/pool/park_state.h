// ParkState: the parts of parking a session, and every transition between them.
//
//   Active --park request, or park_after--> Resting --the worker is at rest--> Measuring
//   Measuring --the size is known--> Parking --the helper has succeeded--> Parked
//   Resting, Measuring, Parking --refused--> Active
//   Parked --a command, or a wake request--> Waiting --there is room, and it is its turn--> Waking
//   Waking --the helper has succeeded--> Active
//
// A helper (park_helper.h) that fails without saying that the process runs as before ends the
// session. Pure functions.
#pragma once

#include <cstdint>

namespace rcuda::server {

enum class ParkState : uint8_t {
  kActive,
  kResting,    // the daemon has asked its worker to come to rest
  kMeasuring,  // NVML reports how much memory it has on its GPUs
  kParking,    // a helper takes its memory away
  kParked,
  kWaiting,  // wants its memory back, and waits for room or for its turn
  kWaking,   // a helper brings its memory back
};
inline constexpr auto kLastParkState = ParkState::kWaking;

constexpr bool may_follow(ParkState from, ParkState to) {
  using State = ParkState;
  switch (to) {
    case State::kActive:
      return from != State::kActive && from != State::kParked && from != State::kWaiting;
    case State::kResting:
      return from == State::kActive;
    case State::kMeasuring:
      return from == State::kResting;
    case State::kParking:
      return from == State::kMeasuring;
    case State::kParked:
      return from == State::kParking;
    case State::kWaiting:
      return from == State::kParked;
    case State::kWaking:
      return from == State::kWaiting;
  }
  return false;
}

// Whether the session's memory is off its GPUs, or on its way.
constexpr bool is_away(ParkState state) { return state >= ParkState::kParked; }

// As rcuda-smi shows it; empty for an active session.
constexpr const char* to_string(ParkState state) {
  constexpr const char* kNames[] = {"",       "parking", "parking", "parking",
                                    "parked", "waiting", "waking"};
  return kNames[static_cast<int>(state)];
}

}  // namespace rcuda::server
