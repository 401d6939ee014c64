#include "p2p/pipeline/messages.h"

#include <algorithm>

namespace rcuda::p2p {

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
  if (message.code == 0) return {};
  std::string text(message.text.data(), std::min(message.text_bytes, kMaxErrorText));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (message.code == static_cast<uint32_t>(Code::kCuda)) {
    return Status::from_cuda(static_cast<int>(message.cuda), "at the peer: " + text);
  }
  const Code code = message.code <= static_cast<uint32_t>(Code::kInternal)
                        ? static_cast<Code>(message.code)
                        : Code::kInternal;
  return {code == Code::kSystem ? Code::kInternal : code, "at the peer: " + text};
}

}  // namespace rcuda::p2p
