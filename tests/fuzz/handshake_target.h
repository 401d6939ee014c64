// The handshake fuzzer's work on one input. handshake_test runs it over fixed mutations, too.
// Decodes the bytes as every message. A message that a decoder accepts must be unchanged after
// another encoding and decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/wire/control_messages.h"
#include "common/wire/export_messages.h"
#include "common/wire/gpu_report.h"
#include "common/wire/handshake.h"
#include "common/wire/lease_messages.h"

namespace rcuda::wire {

// For messages with several encodings that decode to the same message: those with texts, whose
// unprintable characters are replaced, and those with Work.
template <typename Message, typename Decode>
void check_again(const Result<Message>& message, const Decode& decode) {
  if (!message.ok()) return;
  const std::vector<std::byte> body = encode(*message);
  const Result<Message> again = decode(body);
  if (!again.ok() || encode(*again) != body) std::abort();
}

inline void fuzz_handshake(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> body(bytes, bytes + size);
  if (auto attach = decode_attach(body); attach.ok() && encode(*attach) != body) std::abort();
  if (auto query = decode_ticket_query(body); query.ok() && encode(*query) != body) std::abort();
  if (auto ticket = decode_ticket(body); ticket.ok() && encode(*ticket) != body) std::abort();
  if (auto who = decode_authenticate(body); who.ok() && encode(*who) != body) std::abort();
  if (auto answer = decode_authenticated(body); answer.ok() && encode(*answer) != body)
    std::abort();
  if (auto asked = decode_control_request(body); asked.ok() && encode(*asked) != body) std::abort();
  if (auto told = decode_control_answer(body); told.ok() && encode(*told) != body) std::abort();
  if (auto query = decode_export_query(body); query.ok() && encode(*query) != body) std::abort();
  if (auto lease = decode_lease_request(body); lease.ok() && encode(*lease) != body) std::abort();
  check_again(decode_hello(body), decode_hello);
  check_again(decode_peer_hello(body), decode_peer_hello);
  check_again(decode_queued(body), decode_queued);
  check_again(decode_welcome(body), decode_welcome);
  check_again(decode_refusal(body), decode_refusal);
  check_again(decode_gpu_report(body), decode_gpu_report);
  check_again(decode_status(body), decode_status);
  check_again(decode_lease_answer(body), decode_lease_answer);
}

}  // namespace rcuda::wire
