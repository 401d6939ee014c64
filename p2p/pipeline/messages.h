// The peer protocol: what two engines tell one another in the rings of their Link.
//
// Greeting    Challenge and Proof both ways (see authentication.h), then Offer both ways.
// A copy      sender                          receiver
//                                             Ready         its stream got there (if it has one)
//             Chunk ...                       Consumed ...  cumulative, gives places back
//                                             Done          over, in whatever way
//             Abort                           the sender gave up, or heard a bad Done: its last
//             word
//   v1        Want -> Target, then one Chunk; ipc: Pull instead of chunks, or Pull -> Target that
//             refuses, then chunks.
//   failure   Abort and a bad Done, in either order, and Consumed for what had been sent
// Events      Signal. Memory: Forget -> Forgotten. Measuring: Echo -> Echoed, Leg.
//
// Order within a Link carries the protocol: a Chunk is sent after its bytes arrived, unless it says
// how the receiver hears of them, and then before they are sent, or even copied out. The places of
// a copy that ended well are free at the sender once Done was received and its own transfers ended,
// those of any other once what was sent has been consumed as well: bytes that are still on their
// way must not land on what is sent next. A receiver forgets a copy that ended well when it sent
// Done, any other when it has received Abort, and all that Abort says was sent.
//
// A frame of the ring is one message or several behind one another.
//
// All structs are fixed-width, little-endian and 8-byte aligned. parse() checks kind and size;
// meaning (ids, offsets, places) is checked by the handler against its own state. Anything wrong is
// kProtocol and ends the Link.
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
#include "p2p/device_ops.h"
#include "p2p/paths/path.h"

namespace rcuda::p2p {

inline constexpr uint32_t kPeerProtocolVersion = 7;

// The windows of a Link between two engines: one ring each way and its credit word.
struct PeerWindow {
  static constexpr uint64_t kConsumed = 0;  // of the ring this window's owner writes
  static constexpr uint64_t kWant = 64;     // of the ring in this window
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
  kProbe,
  kProbed,
};
const char* to_string(MessageKind kind);

inline constexpr uint32_t kMaxDevices = 16;
inline constexpr uint32_t kMaxErrorText = 200;
inline constexpr uint32_t kMaxLegKnots = 64;

struct ChallengeMessage {
  static constexpr MessageKind kKind = MessageKind::kChallenge;
  MessageKind kind = kKind;
  uint32_t version = kPeerProtocolVersion;
  std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(ChallengeMessage) == 40);

struct ProofMessage {
  static constexpr MessageKind kKind = MessageKind::kProof;
  MessageKind kind = kKind;
  uint32_t reserved = 0;
  std::array<std::byte, 32> proof{};
};
static_assert(sizeof(ProofMessage) == 40);

struct DeviceOffer {
  std::array<char, 48> uuid{};  // padded with zeros
  uint64_t inbox_region = 0;    // GPU memory the peer may write, 0: none
  uint64_t inbox_bytes = 0;
  uint32_t has_probe = 0;  // 1: `probe` is a page another process of this host can map
  uint32_t reserved = 0;
  std::array<std::byte, ExportedMemory::kHandleBytes> probe{};
};
static_assert(sizeof(DeviceOffer) == 200);

struct OfferMessage {
  static constexpr MessageKind kKind = MessageKind::kOffer;
  MessageKind kind = kKind;
  uint32_t device_count = 0;
  std::array<char, 48> host{};  // identifies the running kernel: same text, same host
  std::array<char, 64> name{};  // of the host, for messages and the measurements file
  uint64_t inbox_region = 0;    // pinned host memory the peer may write
  uint64_t inbox_bytes = 0;
  std::array<DeviceOffer, kMaxDevices> devices{};
};
static_assert(sizeof(OfferMessage) == 136 + kMaxDevices * sizeof(DeviceOffer));

struct ReadyMessage {
  static constexpr MessageKind kKind = MessageKind::kReady;
  MessageKind kind = kKind;
  uint32_t reserved = 0;
  uint64_t copy = 0;
};
static_assert(sizeof(ReadyMessage) == 16);

struct ChunkMessage {
  static constexpr MessageKind kKind = MessageKind::kChunk;
  MessageKind kind = kKind;
  Where where = Where::kHostInbox;
  uint64_t copy = 0;
  uint64_t offset = 0;  // in the packed stream; chunks of a copy are sent in order
  uint64_t bytes = 0;
  uint64_t place = 0;  // offset in the inbox
  uint64_t total = 0;  // of the copy, so that a receiver can tell a disagreement
  // 0: the bytes are there. Else they are when so many have come with this immediate, which no
  // other chunk under way over the Link has; that may never be where Abort says so.
  uint32_t immediate = 0;
  // 1: its place is waited for, so Consumed is wanted as soon as it has landed. (Of a copy that has
  // the way to itself and room for all it has left, Done gives the places back as well.)
  uint32_t place_wanted = 0;
  uint64_t after = 0;  // the copy before it in a train, whose chunks it must not overtake, or 0
};
static_assert(sizeof(ChunkMessage) == 64);

struct ConsumedMessage {
  static constexpr MessageKind kKind = MessageKind::kConsumed;
  MessageKind kind = kKind;
  uint32_t reserved = 0;
  uint64_t copy = 0;
  uint64_t chunks = 0;  // so many of the copy's chunks are out of the inbox
};
static_assert(sizeof(ConsumedMessage) == 24);

struct WantMessage {
  static constexpr MessageKind kKind = MessageKind::kWant;
  MessageKind kind = kKind;
  uint32_t reserved = 0;
  uint64_t copy = 0;
};

struct TargetMessage {
  static constexpr MessageKind kKind = MessageKind::kTarget;
  MessageKind kind = kKind;
  uint32_t refused = 0;  // 1: cannot be registered, or for a Pull mapped; stage instead
  uint64_t copy = 0;
  uint64_t region = 0;
};
static_assert(sizeof(TargetMessage) == 24);

struct PullMessage {
  static constexpr MessageKind kKind = MessageKind::kPull;
  MessageKind kind = kKind;
  uint32_t device = 0;  // of the sender
  uint64_t copy = 0;
  std::array<std::byte, ExportedMemory::kHandleBytes> handle{};
  uint64_t offset = 0;
  uint64_t width_bytes = 0, height = 0, depth = 0, pitch_bytes = 0, slice_bytes = 0;
  uint64_t after = 0;  // as in ChunkMessage
};
static_assert(sizeof(PullMessage) == 16 + 128 + 56);

// Done and Abort. `code` is rcuda::Code, `cuda` the CUresult where code is kCuda.
struct EndMessage {
  MessageKind kind = MessageKind::kDone;
  uint32_t code = 0;
  uint64_t copy = 0;
  uint64_t chunks = 0;  // Abort: so many of the announced ones were sent, the others never will be
  uint32_t cuda = 0;
  uint32_t text_bytes = 0;
  std::array<char, kMaxErrorText> text{};
};
static_assert(sizeof(EndMessage) == 232);

struct SignalMessage {
  static constexpr MessageKind kKind = MessageKind::kSignal;
  MessageKind kind = kKind;
  uint32_t code = 0;  // of what the event's stream met, as in EndMessage
  uint64_t signal = 0;
  uint32_t cuda = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(SignalMessage) == 24);

struct ForgetMessage {
  static constexpr MessageKind kKind = MessageKind::kForget;
  MessageKind kind = kKind;
  uint32_t reserved = 0;
  uint64_t request = 0;  // echoed in Forgotten
  std::array<std::byte, ExportedMemory::kHandleBytes> handle{};
};

struct ForgottenMessage {
  static constexpr MessageKind kKind = MessageKind::kForgotten;
  MessageKind kind = kKind;
  uint32_t reserved = 0;
  uint64_t request = 0;
};

struct EchoMessage {
  MessageKind kind = MessageKind::kEcho;
  uint32_t reserved = 0;
  uint64_t tag = 0;
};

// A leg the sender of this message measured, for the peer's planner.
struct LegMessage {
  static constexpr MessageKind kKind = MessageKind::kLeg;
  MessageKind kind = kKind;
  uint32_t knot_count = 0;
  std::array<char, 16> leg{};  // "copy_out", "copy_in", "device_copy", "ipc"
  std::array<char, 48> gpu{};
  std::array<char, 48> peer{};  // ipc: the GPU that pulls; `gpu` is the source
  double delay_us = 0;          // of all sizes, as copy engines have it
  uint32_t disturbed = 0;       // 1: copies came between its samples; not to be saved
  uint32_t reserved = 0;
  std::array<uint64_t, kMaxLegKnots> bytes{};
  std::array<double, kMaxLegKnots> us{};
};
static_assert(sizeof(LegMessage) == 136 + kMaxLegKnots * 16);

// "Is this pattern at the start of your device's inbox?" proves GPUDirect.
struct ProbeMessage {
  static constexpr MessageKind kKind = MessageKind::kProbe;
  MessageKind kind = kKind;
  uint32_t sender_device = 0;
  uint32_t device = 0;  // of the receiver
  uint32_t reserved = 0;
  uint64_t pattern = 0;
};
static_assert(sizeof(ProbeMessage) == 24);

// What the receiver of a Probe found. Unasked, for each device whose probe was offered by a worker
// of the same host, and each of its own: whether it could map the memory (kIpc, kNoIpc).
enum class Proven : uint32_t { kNothing = 0, kGpudirect = 1, kIpc = 2, kNoIpc = 3 };
struct ProbedMessage {
  static constexpr MessageKind kKind = MessageKind::kProbed;
  MessageKind kind = kKind;
  uint32_t sender_device = 0;  // of the side that receives this message and will send copies
  uint32_t device = 0;         // of the side that sends this message
  Proven proven = Proven::kNothing;
};
static_assert(sizeof(ProbedMessage) == 16);

// The kind of a received frame; kProtocol when it is too short to have one or has an unknown one.
Result<MessageKind> kind_of(std::span<const std::byte> frame);

// How much of the frame its first message takes: what a message of its kind has, or all that there
// is, where that is less or the kind unknown.
size_t first_message_bytes(std::span<const std::byte> frame);

// The frame as a message of the type; kProtocol unless its size is exactly that.
template <typename Message>
Result<Message> parse(std::span<const std::byte> frame) {
  static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) % 8 == 0);
  if (frame.size() != sizeof(Message)) {
    return Status(Code::kProtocol, "a peer message has " + std::to_string(frame.size()) +
                                       " bytes, not " + std::to_string(sizeof(Message)));
  }
  Message message;
  std::memcpy(&message, frame.data(), sizeof message);
  return message;
}

EndMessage make_end(MessageKind kind, uint64_t copy, const Status& status);
SignalMessage make_signal(uint64_t signal, const Status& status);
// The status a message carries; its text is bounded and made printable.
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
