#include "p2p/link/messages.h"

#include <algorithm>
#include <utility>

namespace rcuda::p2p {
namespace {

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
  switch (kind) {
    case MessageKind::kChallenge:
      return "Challenge";
    case MessageKind::kProof:
      return "Proof";
    case MessageKind::kOffer:
      return "Offer";
    case MessageKind::kReady:
      return "Ready";
    case MessageKind::kChunk:
      return "Chunk";
    case MessageKind::kConsumed:
      return "Consumed";
    case MessageKind::kWant:
      return "Want";
    case MessageKind::kTarget:
      return "Target";
    case MessageKind::kPull:
      return "Pull";
    case MessageKind::kDone:
      return "Done";
    case MessageKind::kAbort:
      return "Abort";
    case MessageKind::kSignal:
      return "Signal";
    case MessageKind::kForget:
      return "Forget";
    case MessageKind::kForgotten:
      return "Forgotten";
    case MessageKind::kEcho:
      return "Echo";
    case MessageKind::kEchoed:
      return "Echoed";
    case MessageKind::kLeg:
      return "Leg";
    case MessageKind::kProbe:
      return "Probe";
    case MessageKind::kProbed:
      return "Probed";
  }
  return "?";
}

size_t first_message_bytes(std::span<const std::byte> frame) {
  const auto size_of = [](MessageKind kind) -> size_t {
    switch (kind) {
      case MessageKind::kChallenge:
        return sizeof(ChallengeMessage);
      case MessageKind::kProof:
        return sizeof(ProofMessage);
      case MessageKind::kOffer:
        return sizeof(OfferMessage);
      case MessageKind::kReady:
        return sizeof(ReadyMessage);
      case MessageKind::kChunk:
        return sizeof(ChunkMessage);
      case MessageKind::kConsumed:
        return sizeof(ConsumedMessage);
      case MessageKind::kWant:
        return sizeof(WantMessage);
      case MessageKind::kTarget:
        return sizeof(TargetMessage);
      case MessageKind::kPull:
        return sizeof(PullMessage);
      case MessageKind::kDone:
      case MessageKind::kAbort:
        return sizeof(EndMessage);
      case MessageKind::kSignal:
        return sizeof(SignalMessage);
      case MessageKind::kForget:
        return sizeof(ForgetMessage);
      case MessageKind::kForgotten:
        return sizeof(ForgottenMessage);
      case MessageKind::kEcho:
      case MessageKind::kEchoed:
        return sizeof(EchoMessage);
      case MessageKind::kLeg:
        return sizeof(LegMessage);
      case MessageKind::kProbe:
        return sizeof(ProbeMessage);
      case MessageKind::kProbed:
        return sizeof(ProbedMessage);
    }
    return SIZE_MAX;
  };
  const Result<MessageKind> kind = kind_of(frame);
  return kind ? std::min(size_of(*kind), frame.size()) : frame.size();
}

Result<MessageKind> kind_of(std::span<const std::byte> frame) {
  uint32_t kind = 0;
  if (frame.size() >= sizeof kind) std::memcpy(&kind, frame.data(), sizeof kind);
  if (kind < static_cast<uint32_t>(MessageKind::kChallenge) ||
      kind > static_cast<uint32_t>(MessageKind::kProbed)) {
    return Status(Code::kProtocol, "a peer message of unknown kind " + std::to_string(kind));
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
  return status_of(message.code, message.cuda, "at the peer: " + text);
}

SignalMessage make_signal(uint64_t signal, const Status& status) {
  SignalMessage message;
  message.signal = signal;
  message.code = static_cast<uint32_t>(status.code());
  message.cuda = static_cast<uint32_t>(status.cuda());
  return message;
}

Status status_of(const SignalMessage& message) {
  return status_of(message.code, message.cuda, "the event's stream failed on its server");
}

}  // namespace rcuda::p2p
