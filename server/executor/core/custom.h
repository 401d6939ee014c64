// Types and helpers of the handlers of custom commands (wire::Custom). The handlers are in
// handlers/, by family; the generated api/server_commands.h declares them.
//
// Each handler gets the services of its family (services.h) and a command. The command's header is
// valid, and its context is current. Exception: PeerSignal, and commands that carry a completion
// word, run even if their context is invalid; then no context is current. The body is untrusted
// input from the client. The bytes after it are read with BodyReader, which bounds every read.
// A command that carries a completion word always signals it, with the error if there is one,
// because a thread of the client waits for it. Exception: a WatchEvent of kReport signals
// nothing if the event is destroyed, recorded again or watched again first. The session's error
// word gets such an error only in three cases: the error is sticky, the completion word is that of
// a staging slot that the copy reads, or the command is the half of a peer copy that reports errors
// (wire::kPeerReports).
//
// Executor thread only. The following handlers may wait, and the whole session waits with them.
// Only the second entry waits for a GPU:
//   HostUnexpose           if the Link is sending from this memory: until it has read the bytes (at
//                          most 4 MB)
//   the first use of an    until copies to the client that are in progress have ended, at most one
//   exported name          second (RegionPuts::await_marks())
//   HostExpose, Copy with  for the registration of memory with the adapter (about 15 ms for 256 MB)
//   GPUDirect
//   ImageChunk, the last   for the hash (about 1 GB/s) and for writing the file
//   NcclPost               as long as NCCL needs to launch operations whose connections exist
//   ModuleLoad and other   as long as the driver needs for a call in which it does not wait for the
//   calls of the driver    device
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/core/dispatch.h"
#include "server/executor/core/services.h"

namespace rcuda::server {

struct Command {
  const wire::CommandHeader& header;
  std::span<const std::byte> tail;  // the bytes after the body; for CustomEntry: body and tail
  ReplyTarget target;               // its `call` is 0 if the command was posted
};

struct CustomEntry {
  // `reply` becomes the reply's body, unless the command was posted or its reply is deferred.
  HandlerResult (*run)(Executor& executor, const Command& command,
                       std::vector<std::byte>* reply) = nullptr;
  // For commands with WhileHeld::kAsks: whether a driver may wait for the device in the command.
  // Null for other commands.
  bool (*may_wait)(Executor& executor, const Command& command) = nullptr;
};
// Generated: the entry of an opcode below kFirstGenerated. Returns nullptr if the opcode is not a
// custom command, or is SessionEnd, which the session loop executes.
const CustomEntry* custom_command(uint16_t opcode);

class BodyReader {
 public:
  explicit BodyReader(std::span<const std::byte> body) : left_(body) {}

  template <typename T>
  bool read(T* value) {
    if (left_.size() < sizeof(T)) return false;
    std::memcpy(value, left_.data(), sizeof(T));
    left_ = left_.subspan(sizeof(T));
    return true;
  }
  bool bytes(size_t count, std::span<const std::byte>* bytes) {
    if (left_.size() < count) return false;
    *bytes = left_.first(count);
    left_ = left_.subspan(count);
    return true;
  }
  std::span<const std::byte> rest() const { return left_; }

 private:
  std::span<const std::byte> left_;
};

inline bool word_exists(uint32_t word) { return word < wire::ClientWindow::kCompletionCount; }

template <typename T>
void append(std::vector<std::byte>* reply, const T& item) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&item);
  reply->insert(reply->end(), bytes, bytes + sizeof item);
}

}  // namespace rcuda::server
