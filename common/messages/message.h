// encode(), decode() and layout_hash() of messages, such as those of handshake.h and
// server_status.h.
//
// The source file of a message lists its fields once (message_codec.h). Encoding, decoding, limits
// and layout all come from this list. Two builds understand each other if their layouts are equal.
// A layout is a text of the fields' names, types, order and limits.
//
// Threads: any. Nothing blocks. Errors: decode() returns kProtocol for bytes that encode() cannot
// produce. The decoders are fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fnv1a.h"
#include "common/base/status.h"

namespace rcuda::wire {

// message_codec.h defines these functions. A message's header declares the instance for the message
// (extern template), and the message's source file defines it.
template <typename Message>
struct Codec {
  static std::vector<std::byte> encode(const Message& message);
  static Result<Message> decode(const std::vector<std::byte>& body);
  // Returns a text that begins like this:
  // "ControlRequest{operation:choice(end,drain,resume,...),worker_pid:u32,"
  static const std::string& layout();
};

template <typename Message>
std::vector<std::byte> encode(const Message& message) {
  return Codec<Message>::encode(message);
}

template <typename Message>
Result<Message> decode(const std::vector<std::byte>& body) {
  return Codec<Message>::decode(body);
}

// Hashes the layouts of these messages together.
template <typename... Messages>
uint64_t layout_hash() {
  static const uint64_t hash = fnv1a((Codec<Messages>::layout() + ...));
  return hash;
}

}  // namespace rcuda::wire
