// An operator's requests: end, park, wake or move a session, drain the server, or let it read its
// settings again.
//
//   operator -> daemon   ControlRequest, after the operator has identified itself as for a Hello
//   daemon -> operator   ControlAnswer, or Refusal; the daemon closes
//
// A server that drains accepts no new sessions and stops when the last session has ended. Plain
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/messages/forms.h"
#include "common/messages/message.h"

namespace rcuda::wire {

enum class ControlOperation : uint32_t {
  kEnd = 1,     // ends a session; its user may also request this
  kDrain = 2,   // accepts no new sessions, on all GPUs or on one
  kResume = 3,  // accepts sessions again, on all GPUs
  kAsk = 4,     // only requests the answer
  kReload = 5,  // reads the settings again
  kPark = 6,    // begins to park a session; its user may also request this
  kWake = 7,    // begins to wake a session; its user may also request this
  kMove = 8     // lets a parked session wake on another GPU
};

struct ControlRequest {
  static constexpr char kName[] = "ControlRequest";
  static constexpr MessageType kForm = MessageType::kControlRequest;
  ControlOperation operation{};
  // kEnd, kPark, kWake, kMove: the session's worker, from ServerStatus.
  uint32_t worker_pid = 0;
  // GPUs, by the server's numbers. kMove: `from` may be left out if the session has one GPU;
  // without `to` the server chooses. kDrain: `from` is the GPU that is drained; without `from`, the
  // whole server is drained.
  std::optional<uint32_t> from{}, to{};
};

struct ControlAnswer {
  static constexpr char kName[] = "ControlAnswer";
  static constexpr MessageType kForm = MessageType::kControlAnswer;
  uint32_t sessions = 0;  // sessions in progress, including a session that is ending
  std::string text;       // kReload: a line about the changed settings; kMove: about the new GPU
  bool draining = false;
};

extern template struct Codec<ControlRequest>;
extern template struct Codec<ControlAnswer>;

}  // namespace rcuda::wire
