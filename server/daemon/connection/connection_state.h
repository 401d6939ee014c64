// ConnectionState: the states of a client's connection until a worker has it, and every transition
// between them (may_follow()).
//
//   Reading --first byte of TLS--> Handshake --report of the door--> Reading
//   Reading --Authenticate--> Proving --identity--> Reading
//   Reading --in a container--> Held --few look-ups are under way--> Proving
//   Reading --LeaseRequest--> Naming --the user's name--> Leasing --the lease's user--> Answering
//   Reading --of a user who is not served--> Naming --the user's name--> Ended
//   Reading --ControlRequest--> Naming --the user's name--> Answering
//   Reading --GpuQuery--> Measuring --NVML has been read--> Answering
//   Reading --StatusQuery--> Answering
//   Reading --Hello--> Naming --the user's name and groups--> Queued --permit--> Admitted
//   Admitted --a lease of others has begun--> Queued
//   any but Ended --passed to a worker, answered, refused or gone--> Ended
//
// Pure functions.
#pragma once

#include <cstdint>

namespace rcuda::server {

enum class ConnectionState : uint8_t {
  kReading,    // reads the client's next message
  kHandshake,  // a door shakes hands with the client (server/door/doors.h)
  kHeld,       // waits until fewer accounts of clients in containers are being looked up
  kProving,    // the client's proof of its identity is being examined
  kLeasing,    // the user of a LeaseRequest is being looked up
  kMeasuring,  // NVML is being read for a GpuQuery
  kNaming,     // the user's name and groups are being looked up, for a session or a request
  kAnswering,  // the last message is being sent
  kQueued,     // has applied for a session (Admission)
  kAdmitted,   // has a permit and waits for a worker
  kEnded,
};
inline constexpr auto kLastConnectionState = ConnectionState::kEnded;

// Whether the server reads the client's messages.
constexpr bool reads(ConnectionState state) { return state <= ConnectionState::kHandshake; }
// Whether the client waits for a session, or for the look-up of its user (kNaming, also for a lease
// or control request). It sends nothing more, but may disconnect.
constexpr bool waits(ConnectionState state) {
  return state == ConnectionState::kNaming || state == ConnectionState::kQueued ||
         state == ConnectionState::kAdmitted;
}
// Whether Connections bounds the number of connections in this state. Admission bounds the number
// of connections in the other states.
constexpr bool is_newcomer(ConnectionState state) { return state <= ConnectionState::kAnswering; }

constexpr bool may_follow(ConnectionState from, ConnectionState to) {
  using State = ConnectionState;
  switch (to) {
    case State::kReading:
      return from == State::kHandshake || from == State::kProving;
    case State::kProving:
      return from == State::kReading || from == State::kHeld;
    case State::kHandshake:
    case State::kHeld:
    case State::kMeasuring:
    case State::kNaming:
      return from == State::kReading;
    case State::kLeasing:
      return from == State::kNaming;
    case State::kAnswering:
      return from == State::kReading || from == State::kNaming || from == State::kLeasing ||
             from == State::kMeasuring;
    case State::kQueued:
      return from == State::kNaming || from == State::kAdmitted;
    case State::kAdmitted:
      return from == State::kQueued;
    case State::kEnded:
      return from != State::kEnded;
  }
  return false;
}

constexpr const char* to_string(ConnectionState state) {
  constexpr const char* kNames[] = {"reading", "handshake", "held",   "proving",
                                    "leasing", "measuring", "naming", "answering",
                                    "queued",  "admitted",  "ended"};
  return kNames[static_cast<int>(state)];
}

}  // namespace rcuda::server
