// The handshake fuzzer's work on one input. handshake_test runs it over fixed mutations, too.
// Decodes the bytes as every message. A message that a decoder accepts must be unchanged after
// another encoding and decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/messages/control_messages.h"
#include "common/messages/export_messages.h"
#include "common/messages/gpu_report.h"
#include "common/messages/handshake.h"
#include "common/messages/lease_messages.h"
#include "common/messages/server_status.h"

namespace rcuda::wire {

template <typename Message>
void decode_again(const std::vector<std::byte>& body) {
  const Result<Message> message = decode<Message>(body);
  if (!message.ok()) return;
  const std::vector<std::byte> encoded = encode(*message);
  const Result<Message> again = decode<Message>(encoded);
  if (!again.ok() || encode(*again) != encoded) std::abort();
}

// For messages without texts, whose unprintable characters are replaced, and without Work: each has
// one encoding only.
template <typename Message>
void decode_exactly(const std::vector<std::byte>& body) {
  const Result<Message> message = decode<Message>(body);
  if (message.ok() && encode(*message) != body) std::abort();
}

inline void fuzz_handshake(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> body(bytes, bytes + size);
  decode_exactly<Attach>(body);
  decode_exactly<TicketQuery>(body);
  decode_exactly<Ticket>(body);
  decode_exactly<Challenge>(body);
  decode_exactly<Authenticate>(body);
  decode_exactly<Authenticated>(body);
  decode_exactly<ExportQuery>(body);
  decode_exactly<ControlRequest>(body);
  decode_exactly<ControlAnswer>(body);
  decode_exactly<LeaseRequest>(body);
  decode_again<PeerHello>(body);
  decode_again<Hello>(body);
  decode_again<Queued>(body);
  decode_again<Welcome>(body);
  decode_again<Refusal>(body);
  decode_again<GpuReport>(body);
  decode_again<ServerStatus>(body);
  decode_again<LeaseAnswer>(body);
}

}  // namespace rcuda::wire
