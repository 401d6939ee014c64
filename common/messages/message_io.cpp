#include "common/messages/message_io.h"

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "common/base/socket_io.h"
#include "common/messages/message_codec.h"

namespace rcuda::wire {
namespace {

constexpr char kWhere[] = "in the handshake";

}  // namespace

Status check_header(const MessageHeader& header) {
  if (header.magic != kMagic) {
    return Status(
        Code::kProtocol,
        "the peer does not speak rcuda's protocol: check host and port; an rcuda-server's "
        "log has its port (\"serving ... on\")");
  }
  if (header.version != kProtocolVersion) {
    return Status(Code::kProtocol, "the peer speaks protocol version " +
                                       std::to_string(header.version) + ", this side version " +
                                       std::to_string(kProtocolVersion) +
                                       ": install the same release of rcuda on both sides");
  }
  const auto type = static_cast<uint32_t>(header.type);
  if (type < static_cast<uint32_t>(MessageType::kHello) ||
      type > static_cast<uint32_t>(MessageType::kExportAnswer) ||
      header.body_bytes > kMaxMessageBytes) {
    return Status(Code::kProtocol, "the peer sent a handshake message of type " +
                                       std::to_string(type) + " with " +
                                       std::to_string(header.body_bytes) +
                                       " bytes; the type is unknown, or the size exceeds " +
                                       std::to_string(kMaxMessageBytes) +
                                       " bytes: install the same release of rcuda on both sides");
  }
  return {};
}

namespace {

template <typename Socket>
Status write_to(const Socket& socket, MessageType type, const std::vector<std::byte>& body,
                Deadline deadline) {
  const std::vector<std::byte> all = message_bytes(type, body);
  if (all.empty()) {
    return Status(Code::kInternal, "cannot send a handshake message of " +
                                       std::to_string(body.size()) + " bytes: the limit is " +
                                       std::to_string(kMaxMessageBytes));
  }
  return send_all(socket, all, deadline).with_context(kWhere);
}

template <typename Socket>
Result<std::pair<MessageType, std::vector<std::byte>>> read_from(const Socket& socket,
                                                                 Deadline deadline) {
  MessageHeader header;
  const auto receive = [&](std::span<std::byte> bytes) {
    return recv_all(socket, bytes, deadline).with_context(kWhere);
  };
  RCUDA_RETURN_IF_ERROR(receive(writable_bytes_of(header)));
  RCUDA_RETURN_IF_ERROR(check_header(header));
  std::vector<std::byte> body(header.body_bytes);
  RCUDA_RETURN_IF_ERROR(receive(body));
  return std::make_pair(header.type, std::move(body));
}

}  // namespace

std::vector<std::byte> message_bytes(MessageType type, const std::vector<std::byte>& body) {
  if (body.size() > kMaxMessageBytes) return {};
  MessageHeader header;
  header.version = kProtocolVersion;
  header.type = type;
  header.body_bytes = static_cast<uint32_t>(body.size());
  std::vector<std::byte> all(sizeof header + body.size());
  std::memcpy(all.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(all.data() + sizeof header, body.data(), body.size());
  return all;
}

Status write_message(int socket, MessageType type, const std::vector<std::byte>& body,
                     std::chrono::steady_clock::time_point deadline) {
  return write_to(socket, type, body, deadline);
}

Status write_message(const Socket& socket, MessageType type, const std::vector<std::byte>& body,
                     std::chrono::steady_clock::time_point deadline) {
  return write_to(socket, type, body, deadline);
}

Result<std::pair<MessageType, std::vector<std::byte>>> read_message(
    int socket, std::chrono::steady_clock::time_point deadline) {
  return read_from(socket, deadline);
}

Result<std::pair<MessageType, std::vector<std::byte>>> read_message(
    const Socket& socket, std::chrono::steady_clock::time_point deadline) {
  return read_from(socket, deadline);
}

Result<size_t> PartialMessage::count_missing() const {
  MessageHeader header;
  if (bytes_.size() < sizeof header) return sizeof header - bytes_.size();
  std::memcpy(&header, bytes_.data(), sizeof header);
  RCUDA_RETURN_IF_ERROR(check_header(header));
  if (header.body_bytes > most_) {
    return Status(Code::kProtocol, "the peer sent a message of " +
                                       std::to_string(header.body_bytes) +
                                       " bytes; the limit here is " + std::to_string(most_));
  }
  return sizeof header + header.body_bytes - bytes_.size();
}

std::pair<MessageType, std::vector<std::byte>> PartialMessage::take() {
  MessageHeader header;
  const std::vector<std::byte> all = std::exchange(bytes_, {});
  std::memcpy(&header, all.data(), sizeof header);
  return {header.type, {all.begin() + sizeof header, all.end()}};
}

}  // namespace rcuda::wire
