// What an operator asks of a server's sessions: to end one, or to drain the server.
//
//   operator -> daemon   ControlRequest, on an identified connection like a Hello's
//   daemon -> operator   ControlAnswer, or Refusal; the daemon closes
//
// A server that is drained takes no new sessions and stops when the last one has ended.
// Plain values.
#pragma once

#include <cstdint>

#include "common/messages/forms.h"
#include "common/messages/message.h"

namespace rcuda::wire {

enum class ControlOperation : uint32_t {
  kEnd = 1,     // a session; for its user, too
  kDrain = 2,   // takes no new sessions
  kResume = 3,  // takes them again
  kAsk = 4      // changes nothing
};

struct ControlRequest {
  static constexpr char kName[] = "ControlRequest";
  static constexpr MessageType kForm = MessageType::kControlRequest;
  ControlOperation operation{};
  uint32_t worker_pid = 0;  // kEnd: the session's worker, as ServerStatus tells
};

struct ControlAnswer {
  static constexpr char kName[] = "ControlAnswer";
  static constexpr MessageType kForm = MessageType::kControlAnswer;
  uint32_t sessions = 0;  // that are still under way, the one that ends included
  bool draining = false;
};

extern template struct Codec<ControlRequest>;
extern template struct Codec<ControlAnswer>;

}  // namespace rcuda::wire
