// What an operator asks of a server's sessions: to end one, or to drain the server.
//
//   operator -> daemon   ControlRequest, on an identified connection like a Hello's
//   daemon -> operator   ControlAnswer, or Refusal; the daemon closes
//
// A server that is drained takes no new sessions and stops when the last one has ended.
// Threads: any; nothing blocks. The decoders are fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace rcuda::wire {

enum class ControlOperation : uint32_t {
  kEnd = 1,     // a session; for its user, too
  kDrain = 2,   // takes no new sessions
  kResume = 3,  // takes them again
  kAsk = 4      // changes nothing
};

struct ControlRequest {
  ControlOperation operation{};
  uint32_t worker_pid = 0;  // kEnd: the session's worker, as ServerStatus tells
};

struct ControlAnswer {
  uint32_t sessions = 0;  // that are still under way, the one that ends included
  bool draining = false;
};

std::vector<std::byte> encode(const ControlRequest& message);
std::vector<std::byte> encode(const ControlAnswer& message);
Result<ControlRequest> decode_control_request(const std::vector<std::byte>& body);
Result<ControlAnswer> decode_control_answer(const std::vector<std::byte>& body);

}  // namespace rcuda::wire
