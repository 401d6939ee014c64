#include "p2p/link/messages.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rcuda::p2p {
namespace {

struct MessageRow {
  const char* name;
  size_t bytes;
};
// In the order of MessageKind, which begins with 1.
constexpr MessageRow kMessages[] = {
    {"Challenge", sizeof(ChallengeMessage)},
    {"Proof", sizeof(ProofMessage)},
    {"Offer", sizeof(OfferMessage)},
    {"Ready", sizeof(ReadyMessage)},
    {"Chunk", sizeof(ChunkMessage)},
    {"Consumed", sizeof(ConsumedMessage)},
    {"Want", sizeof(WantMessage)},
    {"Target", sizeof(TargetMessage)},
    {"Pull", sizeof(PullMessage)},
    {"Done", sizeof(EndMessage)},
    {"Abort", sizeof(EndMessage)},
    {"Signal", sizeof(SignalMessage)},
    {"Forget", sizeof(ForgetMessage)},
    {"Forgotten", sizeof(ForgottenMessage)},
    {"Echo", sizeof(EchoMessage)},
    {"Echoed", sizeof(EchoMessage)},
    {"Leg", sizeof(LegMessage)},
    {"Mappable", sizeof(MappableMessage)},
};
static_assert(std::size(kMessages) == static_cast<size_t>(MessageKind::kMappable));

Status status_of(uint32_t code, uint32_t cuda, std::string context) {
  if (code == static_cast<uint32_t>(Code::kOk)) return {};
  if (code == static_cast<uint32_t>(Code::kCuda) && cuda != 0) {
    return Status::from_cuda(static_cast<int>(cuda), std::move(context));
  }
  const bool known = code < static_cast<uint32_t>(Code::kCuda);
  return {known ? static_cast<Code>(code) : Code::kInternal, std::move(context)};
}

}  // namespace

const char* to_string(MessageKind kind) {
  const auto index = static_cast<size_t>(kind) - 1;
  return index < std::size(kMessages) ? kMessages[index].name : "?";
}

size_t first_message_bytes(std::span<const std::byte> frame) {
  const Result<MessageKind> kind = kind_of(frame);
  if (!kind) return frame.size();
  return std::min(kMessages[static_cast<size_t>(*kind) - 1].bytes, frame.size());
}

Result<MessageKind> kind_of(std::span<const std::byte> frame) {
  uint32_t kind = 0;
  if (frame.size() >= sizeof kind) std::memcpy(&kind, frame.data(), sizeof kind);
  if (kind < static_cast<uint32_t>(MessageKind::kChallenge) ||
      kind > static_cast<uint32_t>(MessageKind::kMappable)) {
    return peer_violation("the peer worker sent a message of unknown kind " + std::to_string(kind) +
                          " (" + std::to_string(frame.size()) + " bytes)");
  }
  return static_cast<MessageKind>(kind);
}

EndMessage make_end(MessageKind kind, uint64_t copy, const Status& status) {
  EndMessage message;
  message.kind = kind;
  message.copy = copy;
  message.code = static_cast<uint32_t>(status.code());
  message.cuda = static_cast<uint32_t>(status.cuda());
  message.text_bytes =
      static_cast<uint32_t>(std::min<size_t>(status.context().size(), kMaxErrorText));
  std::memcpy(message.text.data(), status.context().data(), message.text_bytes);
  return message;
}

Status status_of(const EndMessage& message) {
  std::string text(message.text.data(), std::min(message.text_bytes, kMaxErrorText));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return status_of(message.code, message.cuda, "the peer worker reports: " + text);
}

SignalMessage make_signal(uint64_t signal, const Status& status) {
  SignalMessage message;
  message.signal = signal;
  message.code = static_cast<uint32_t>(status.code());
  message.cuda = static_cast<uint32_t>(status.cuda());
  return message;
}

Status status_of(const SignalMessage& message) {
  return status_of(message.code, message.cuda,
                   "the stream that records the awaited event failed on the peer's server");
}

}  // namespace rcuda::p2p
