#include "common/reach/protocol_hash.h"

#include <cstddef>
#include <vector>

#include "common/base/fnv1a.h"
#include "common/base/socket_io.h"
#include "common/messages/handshake.h"
#include "common/messages/message_codec.h"
#include "common/reach/socket_keys.h"
#include "common/wire/block_digest.h"
#include "common/wire/codec.h"
#include "common/wire/marked_bytes.h"
#include "common/wire/protocol.h"
#include "common/wire/struct_layouts.h"

namespace rcuda::wire {
namespace {

// Adds an Encoder's body that has an item of each kind.
void add_encoding(MessageWriter* out) {
  Encoder encoder;
  encoder.value(uint8_t{1});
  encoder.value(uint64_t{2});
  encoder.value(uint16_t{3});
  const uint32_t items[] = {4, 5, 6};
  encoder.array(items, 3);
  encoder.string("seven");
  encoder.string(nullptr);
  out->append(encoder.body());
}

void add_words(MessageWriter* out) {
  out->number("frame_header", frame_header(9, 10));
  out->number("frame_stamp", frame_stamp(11));
  out->number("frame_bytes", frame_bytes(12));
  out->number("completion", CompletionWord::make(13, 14));
  out->number("reply", ReplyStamp::make(15, 16));
  out->number("context", primary_context_id(17));
  out->number("loan", MirrorLoan::offset(21));
  out->number("part", part_bytes_of(5u << 20));
  out->number("immediate", immediate_of(~0u, 2));
}

void add_bytes(MessageWriter* out) {
  const std::byte before[24] = {};
  std::byte now[24] = {};
  for (const size_t changed : {1u, 9u, 23u}) now[changed] = std::byte{8};
  uint8_t mask[mask_bytes(sizeof now)];
  mark_differences(now, before, sizeof now, mask);
  out->bytes("mask", mask);
  out->append(bytes_of(block_digest(now, 16, 4096)));
}

void add_secrets(MessageWriter* out) {
  const uint8_t nonce[32] = {18};
  out->string("attach_name", kAttachNameLabel);
  out->string("attach", attach_label(1, 19));
  out->string("socket", socket_label(2, 20));
  out->string("peer_attach", peer_attach_label(3, 4, 7));
  out->string("peer_socket", peer_socket_label(3, 4, 7));
  out->append(munge_payload(MungeSide::kClient, nonce));
}

uint64_t compute() {
  MessageWriter out;
  out.number("messages", layout_hash<Hello, Queued, Attach, PeerHello, TicketQuery, Ticket,
                                     Challenge, Authenticate, Authenticated, Welcome, Refusal>());
  out.number("structs", kStructLayouts);
  add_encoding(&out);
  add_words(&out);
  add_bytes(&out);
  add_secrets(&out);
  const std::vector<std::byte> all = out.take();
  return fnv1a({reinterpret_cast<const char*>(all.data()), all.size()});
}

}  // namespace

uint64_t protocol_hash() {
  static const uint64_t hash = compute();
  return hash;
}

}  // namespace rcuda::wire
