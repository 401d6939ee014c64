// An operator's requests: end, park or wake a session, drain the server, or let it read its
// settings again.
//
//   operator -> daemon   ControlRequest, on an identified connection like a Hello's
//   daemon -> operator   ControlAnswer, or Refusal; the daemon closes
//
// A server that drains accepts no new sessions and stops when the last session has ended. Plain
// values.
#pragma once

#include <cstdint>
#include <string>

#include "common/messages/forms.h"
#include "common/messages/message.h"

namespace rcuda::wire {

enum class ControlOperation : uint32_t {
  kEnd = 1,     // ends a session; its user may also request this
  kDrain = 2,   // accepts no new sessions
  kResume = 3,  // accepts sessions again
  kAsk = 4,     // changes nothing
  kReload = 5,  // reads the settings again
  kPark = 6,    // begins to park a session; its user may also request this, and the next
  kWake = 7     // begins to wake a session
};

struct ControlRequest {
  static constexpr char kName[] = "ControlRequest";
  static constexpr MessageType kForm = MessageType::kControlRequest;
  ControlOperation operation{};
  uint32_t worker_pid = 0;  // kEnd, kPark, kWake: the session's worker, from ServerStatus
};

struct ControlAnswer {
  static constexpr char kName[] = "ControlAnswer";
  static constexpr MessageType kForm = MessageType::kControlAnswer;
  uint32_t sessions = 0;  // sessions in progress, including a session that is ending
  std::string text;       // kReload: a line that says what has changed
  bool draining = false;
};

extern template struct Codec<ControlRequest>;
extern template struct Codec<ControlAnswer>;

}  // namespace rcuda::wire
