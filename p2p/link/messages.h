// The peer protocol: the messages of two engines in the rings of their Link.
//
// Greeting    Challenge and Proof both ways (see authentication.h), then Offer both ways.
// A copy      sender                          receiver
//                                             Ready         its stream, if any, reached the copy
//             Chunk ...                       Consumed ...  cumulative; slots are free again
//                                             Done          the copy is over, with or without error
//             Abort, its last message: the sender has failed, or has received Done with an error
//   direct    Want -> Target, then one Chunk
//   mapped    Pull instead of chunks; or Pull -> Target that refuses, then chunks
//   failure   Abort and Done with an error, in either order, and Consumed for everything sent
// Events      Signal. Memory: Mappable, Forget -> Forgotten. Measuring: Echo -> Echoed, Leg.
//
// The protocol relies on the order of messages within a Link. A Chunk without an immediate is sent
// after its bytes have arrived. A Chunk with an immediate may be sent before its bytes, and even
// before they are copied out.
//
// If a copy has no error, the sender may reuse its slots when Done has arrived and the sender's own
// transfers have ended. The receiver forgets the copy when it has sent Done. If a copy fails, the
// sender also waits until everything that was sent has been consumed, because bytes that are still
// in flight must not overwrite later bytes. The receiver forgets the copy when it has received
// Abort, all chunks that Abort counts as sent, and its own half from the client.
//
// A frame of the ring is one or more messages, one after the other.
//
// All structs are fixed-width, little-endian and 8-byte aligned. kind_of() checks the kind and
// parse() the size. The handler checks the meaning (ids, offsets, slots) against its own state. Any
// violation is kProtocol and ends the Link. Two errors do not end the Link: a Pull outside of the
// mapped memory is refused, and halves that disagree end only their copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "common/base/status.h"
#include "common/wire/ring.h"
#include "p2p/api/device_ops.h"
#include "p2p/staging/path.h"

namespace rcuda::p2p {

// The layout of the windows of a Link between two engines: one ring in each direction, with its two
// flow-control words `consumed` and `want` (common/wire/ring.h).
struct PeerWindow {
  static constexpr uint64_t kConsumed = 0;  // for the ring that this window's owner writes
  static constexpr uint64_t kWant = 64;     // for the ring in this window
  static constexpr uint64_t kRing = 4096;
  static constexpr uint64_t kRingBytes = 256u << 10;
  static constexpr uint64_t kBytes = kRing + kRingBytes;
  static constexpr uint32_t kMaxMessageBytes = 16u << 10;
  static constexpr wire::RingLayout layout() {
    return {kRing, kRingBytes, kWant, kConsumed, kMaxMessageBytes};
  }
};

enum class MessageKind : uint32_t {
  kChallenge = 1,
  kProof,
  kOffer,
  kReady,
  kChunk,
  kConsumed,
  kWant,
  kTarget,
  kPull,
  kDone,
  kAbort,
  kSignal,
  kForget,
  kForgotten,
  kEcho,
  kEchoed,
  kLeg,
  kMappable,
};
const char* to_string(MessageKind kind);

inline constexpr uint32_t kMaxDevices = 16;
inline constexpr uint32_t kMaxErrorText = 200;
inline constexpr uint32_t kMaxLegKnots = 64;

// The beginning of every message.
template <MessageKind Kind>
struct MessageOf {
  MessageKind kind = Kind;
};

struct ChallengeMessage : MessageOf<MessageKind::kChallenge> {
  uint32_t reserved = 0;
  std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(ChallengeMessage) == 40);

struct ProofMessage : MessageOf<MessageKind::kProof> {
  uint32_t reserved = 0;
  std::array<std::byte, 32> proof{};
};
static_assert(sizeof(ProofMessage) == 40);

struct DeviceOffer {
  std::array<char, 48> uuid{};  // padded with zeros
  uint64_t inbox_region = 0;    // GPU memory that the peer may write; 0: none
  uint64_t inbox_bytes = 0;
  uint32_t has_probe = 0;  // 1: `probe` is memory that another process of this host can map
  uint32_t reserved = 0;
  std::array<std::byte, ExportedMemory::kHandleBytes> probe{};
};
static_assert(sizeof(DeviceOffer) == 200);

struct OfferMessage : MessageOf<MessageKind::kOffer> {
  uint32_t device_count = 0;
  std::array<char, 48> host{};  // host_identity(): same text, same host
  std::array<char, 64> name{};  // of the host, for log messages
  uint64_t inbox_region = 0;    // pinned host memory that the peer may write
  uint64_t inbox_bytes = 0;
  std::array<DeviceOffer, kMaxDevices> devices{};
};
static_assert(sizeof(OfferMessage) == 136 + kMaxDevices * sizeof(DeviceOffer));

struct ReadyMessage : MessageOf<MessageKind::kReady> {
  uint32_t reserved = 0;
  uint64_t copy = 0;
};
static_assert(sizeof(ReadyMessage) == 16);

struct ChunkMessage : MessageOf<MessageKind::kChunk> {
  Where where = Where::kHostInbox;
  uint64_t copy = 0;
  uint64_t offset = 0;  // in the packed bytes (staging/shape.h); announced in order
  uint64_t bytes = 0;
  uint64_t slot = 0;   // offset in the inbox
  uint64_t total = 0;  // bytes of the copy; the receiver compares it with its own half
  // 0: the bytes have arrived. Otherwise the chunk has arrived when `bytes` bytes have come with
  // this immediate, which no other chunk in flight over the Link has. If Abort counts a chunk as
  // not sent, its bytes never come.
  uint32_t immediate = 0;
  // 1: the receiver must send Consumed as soon as the chunk has landed, because the sender may wait
  // for the slot. 0: Done frees the slot early enough, because the sender has started the last
  // chunk of this copy and has nothing else to send to this peer.
  uint32_t slot_wanted = 0;
  uint64_t predecessor = 0;  // the previous copy of the train, which must land first; 0: none
};
static_assert(sizeof(ChunkMessage) == 64);

struct ConsumedMessage : MessageOf<MessageKind::kConsumed> {
  uint32_t reserved = 0;
  uint64_t copy = 0;
  uint64_t chunks = 0;  // the number of the copy's chunks whose slots are free
};
static_assert(sizeof(ConsumedMessage) == 24);

struct WantMessage : MessageOf<MessageKind::kWant> {
  uint32_t reserved = 0;
  uint64_t copy = 0;
};

struct TargetMessage : MessageOf<MessageKind::kTarget> {
  uint32_t refused = 0;  // 1: the receiver cannot register (Pull: map) the memory; stage the copy
  uint64_t copy = 0;
  uint64_t region = 0;
};
static_assert(sizeof(TargetMessage) == 24);

struct PullMessage : MessageOf<MessageKind::kPull> {
  uint32_t reserved = 0;
  uint64_t copy = 0;
  std::array<std::byte, ExportedMemory::kHandleBytes> handle{};
  uint64_t offset = 0;
  uint64_t width_bytes = 0, height = 0, depth = 0, pitch_bytes = 0, slice_bytes = 0;
  uint64_t predecessor = 0;  // as in ChunkMessage
};
static_assert(sizeof(PullMessage) == 16 + 128 + 56);

// Done and Abort. `code` is an rcuda::Code; with kCuda, `cuda` is the CUresult.
struct EndMessage {
  MessageKind kind = MessageKind::kDone;
  uint32_t code = 0;
  uint64_t copy = 0;
  // Abort: the number of announced chunks that were sent. The bytes of other chunks never come.
  uint64_t chunks = 0;
  uint32_t cuda = 0;
  uint32_t text_bytes = 0;
  std::array<char, kMaxErrorText> text{};
};
static_assert(sizeof(EndMessage) == 232);

struct SignalMessage : MessageOf<MessageKind::kSignal> {
  uint32_t code = 0;  // as in EndMessage: error of the event's stream, or of a copy before it
  uint64_t signal = 0;
  uint32_t cuda = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(SignalMessage) == 24);

struct ForgetMessage : MessageOf<MessageKind::kForget> {
  uint32_t reserved = 0;
  uint64_t request = 0;  // echoed in Forgotten
  std::array<std::byte, ExportedMemory::kHandleBytes> handle{};
};

struct ForgottenMessage : MessageOf<MessageKind::kForgotten> {
  uint32_t reserved = 0;
  uint64_t request = 0;
};

struct EchoMessage {
  MessageKind kind = MessageKind::kEcho;
  uint32_t reserved = 0;
  uint64_t tag = 0;
};

// A leg of copies from the peer to the side that sends this message. The sending side has measured
// the leg for the peer's planner.
enum class ReportedLeg : uint32_t { kCopyIn = 0, kWithin = 1, kIpc = 2 };
struct LegMessage : MessageOf<MessageKind::kLeg> {
  ReportedLeg leg = ReportedLeg::kCopyIn;
  uint32_t device = 0;       // of the side that sends this message
  uint32_t peer_device = 0;  // ipc: the source device on the receiving side
  uint32_t knot_count = 0;
  uint32_t reserved = 0;
  double delay_us = 0;  // one value, because the delay of copy engines is the same for all sizes
  std::array<uint64_t, kMaxLegKnots> bytes{};
  std::array<double, kMaxLegKnots> us{};
};
static_assert(sizeof(LegMessage) == 32 + kMaxLegKnots * 16);

// The result of mapping the peer's probe memory. A worker on the same host sends one message for
// each pair of devices: a device of the peer that has probe memory, and a device of its own.
struct MappableMessage : MessageOf<MessageKind::kMappable> {
  uint32_t sender_device = 0;  // of the side that receives this message and will send copies
  uint32_t device = 0;         // of the side that sends this message
  uint32_t mappable = 0;       // 1: the probe memory could be mapped
};
static_assert(sizeof(MappableMessage) == 16);

// The error for a peer that breaks the protocol; the connection ends with it. `what`: which message
// or value of the peer is invalid, and which values are valid.
inline Status peer_violation(const std::string& what) {
  return {Code::kProtocol, what + "; closing the connection"};
}

// Returns the kind of the first message of a frame. kProtocol if the frame is too short for a kind,
// or the kind is unknown.
Result<MessageKind> kind_of(std::span<const std::byte> frame);

// Returns the size of the first message of a frame: the size of its kind, or of the whole frame if
// the frame is shorter or the kind is unknown.
size_t first_message_bytes(std::span<const std::byte> frame);

// Returns the frame as a message of this type. kProtocol if its size is not exactly the size of the
// type.
template <typename Message>
Result<Message> parse(std::span<const std::byte> frame) {
  static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) % 8 == 0);
  if (frame.size() != sizeof(Message)) {
    const Result<MessageKind> kind = kind_of(frame);
    return peer_violation(
        std::string("the peer worker sent ") + (kind ? to_string(*kind) : "a message") + " with " +
        std::to_string(frame.size()) + " bytes, not " + std::to_string(sizeof(Message)));
  }
  Message message;
  std::memcpy(&message, frame.data(), sizeof message);
  return message;
}

EndMessage make_end(MessageKind kind, uint64_t copy, const Status& status);
SignalMessage make_signal(uint64_t signal, const Status& status);
// Returns the status in a message. Of the text of an EndMessage, takes at most kMaxErrorText bytes
// and replaces control characters by blanks.
Status status_of(const EndMessage& message);
Status status_of(const SignalMessage& message);

template <size_t N>
void put_text(std::array<char, N>& to, const std::string& text) {
  to.fill(0);
  std::memcpy(to.data(), text.data(), text.size() < N ? text.size() : N - 1);
}
template <size_t N>
std::string get_text(const std::array<char, N>& from) {
  return {from.data(), strnlen(from.data(), N)};
}

}  // namespace rcuda::p2p
