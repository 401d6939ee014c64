// The handshake fuzzer's work on one input. handshake_test runs it over fixed mutations, too.
// Decodes the bytes as every message. A message that a decoder accepts must be unchanged after
// another encoding and decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/wire/control_messages.h"
#include "common/wire/gpu_report.h"
#include "common/wire/handshake.h"
#include "common/wire/lease_messages.h"

namespace rcuda::wire {

// Of messages with Work, which has one encoding and several forms that decode to it.
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
  if (auto hello = decode_hello(body); hello.ok() && encode(*hello) != body) std::abort();
  if (auto queued = decode_queued(body); queued.ok() && encode(*queued) != body) std::abort();
  if (auto attach = decode_attach(body); attach.ok() && encode(*attach) != body) std::abort();
  if (auto peer = decode_peer_hello(body); peer.ok() && encode(*peer) != body) std::abort();
  if (auto query = decode_ticket_query(body); query.ok() && encode(*query) != body) std::abort();
  if (auto ticket = decode_ticket(body); ticket.ok() && encode(*ticket) != body) std::abort();
  if (auto nonce = decode_challenge(body); nonce.ok() && encode(*nonce) != body) std::abort();
  if (auto who = decode_authenticate(body); who.ok() && encode(*who) != body) std::abort();
  if (auto answer = decode_authenticated(body); answer.ok() && encode(*answer) != body)
    std::abort();
  if (auto welcome = decode_welcome(body); welcome.ok() && encode(*welcome) != body) std::abort();
  if (auto refusal = decode_refusal(body); refusal.ok() && encode(*refusal) != body) std::abort();
  if (auto gpus = decode_gpu_report(body); gpus.ok() && encode(*gpus) != body) std::abort();
  if (auto asked = decode_control_request(body); asked.ok() && encode(*asked) != body) std::abort();
  if (auto told = decode_control_answer(body); told.ok() && encode(*told) != body) std::abort();
  if (auto lease = decode_lease_request(body); lease.ok() && encode(*lease) != body) std::abort();
  check_again(decode_status(body), decode_status);
  check_again(decode_lease_answer(body), decode_lease_answer);
}

}  // namespace rcuda::wire
