// What custom commands (wire::Custom) are carried out with. The handlers stand in handlers/ by
// family; the generated api/server_commands.h declares them.
//
// Each handler gets the services of its family (services.h) and a command. The command's header is
// valid, and the thread is in its context. The body is whatever the peer sent: bytes behind it are
// read with BodyReader, which bounds every read.
// A command that carries a completion word always signals it, with the error if there is one, since
// somebody waits for it. Such an error is latched as well only if it is sticky, or if the word is
// that of a staging slot that the copy reads.
// Executor thread only; none blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/dispatch.h"
#include "server/executor/services.h"

namespace rcuda::server {

struct Command {
  const wire::CommandHeader& header;
  std::span<const std::byte> tail;  // a handler's: what follows the body; else body and tail
  ReplyTarget target;               // call 0: posted
};

struct CustomEntry {
  // `reply` becomes the reply's body, unless the result is deferred or nobody waits.
  HandlerResult (*run)(Executor& executor, const Command& command,
                       std::vector<std::byte>* reply) = nullptr;
  // WhileHeld::kAsks: whether a driver may wait for the device in it. Else null.
  bool (*may_wait)(Executor& executor, const Command& command) = nullptr;
};
// Generated: the entry of an opcode below kFirstGenerated. Returns nullptr if the opcode is no
// custom command, or is SessionEnd, which is the loop's.
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

// The parameters of a function or kernel, by ordinal.
std::vector<wire::ParameterInfo> parameters_of(const api::DriverTable& driver, void* handle,
                                               bool is_kernel);

}  // namespace rcuda::server
