// The hand-written commands (wire::Custom): one function each, spread over custom_*.cpp by family.
//
// Each gets a command whose header is valid, in whose context the thread is, and whose body is
// whatever the peer sent: bodies are read with BodyReader, which bounds every read. A command that
// carries a completion word always signals it, with the error where there is one, since somebody
// waits for it; such an error is not latched as well unless it is sticky, or the word is a staging
// slot's that the copy reads.
// Executor thread only; none blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/wire/protocol.h"
#include "server/executor/dispatch.h"
#include "server/executor/executor.h"

namespace rcuda::server {

struct Command {
  const wire::CommandHeader& header;
  std::span<const std::byte> body;
  ReplyTarget target;  // call 0: posted
};

// `reply` becomes the reply's body, unless the result is deferred or nobody waits.
using CustomHandler = HandlerResult (*)(Executor& executor, const Command& command,
                                        std::vector<std::byte>* reply);
// nullptr for what is no custom command that the executor handles. kSessionEnd is the loop's.
CustomHandler custom_handler(uint16_t opcode);

inline constexpr HandlerResult kMalformed{CUDA_SUCCESS, true, false};
inline constexpr HandlerResult kDeferred{CUDA_SUCCESS, false, true};

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

HandlerResult ping(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult signal(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult watch_event(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult synchronize_context(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult fault(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult copy_inline(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult copy_to_reply(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult copy_staged(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult copy(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult copy_shape(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult launch(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult launch_host(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult function_info(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult image_query(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult image_chunk(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult module_load(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult library_load(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult host_expose(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult host_unexpose(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult mirror(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult unmirror(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult mirror_fetch(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult peer_introduce(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult peer_copy(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult peer_signal(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult peer_await(Executor&, const Command&, std::vector<std::byte>*);
HandlerResult peer_plan(Executor&, const Command&, std::vector<std::byte>*);

}  // namespace rcuda::server
