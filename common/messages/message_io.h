// The framing of the messages on the control socket: a MessageHeader, and a body of at most
// kMaxMessageBytes, which message.h encodes and decodes.
//
// Threads: one reader and one writer for a socket. Blocking: read_message() and write_message(),
// until they are done or the deadline has passed. Errors: kProtocol for another magic, or for
// another version (the error names both versions).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/socket.h"
#include "common/base/status.h"

namespace rcuda::wire {

// The version of the framing. It stays the same when only messages change: builds whose messages
// differ refuse each other by protocol_hash.h and forms.h. Builds whose commands differ do not use
// these commands (api/command_hashes.h).
inline constexpr uint32_t kProtocolVersion = 2;

inline constexpr uint32_t kMagic = 0x41445543u;  // "CUDA" in memory order
inline constexpr uint32_t kMaxMessageBytes = 4u << 20;
inline constexpr uint16_t kDefaultPort = 8308;

enum class MessageType : uint32_t {
  kHello = 1,
  kAttach = 2,
  kWelcome = 3,
  kRefusal = 4,
  kStatusQuery = 5,  // empty body; the daemon answers with kStatus and closes
  kStatus = 6,
  kPeerHello = 7,
  kPeerWelcome = 8,  // empty body
  kQueued = 9,       // daemon to client: the Hello is valid, but the session has not begun
  kTicketQuery = 10,
  kTicket = 11,
  kAttached = 12,  // empty body
  kChallenge = 13,
  kAuthenticate = 14,
  kAuthenticated = 15,
  kAssigned = 16,      // empty body
  kLeaseRequest = 17,  // lease_messages.h; the daemon answers with kLeaseAnswer and closes
  kLeaseAnswer = 18,
  kGpuQuery = 19,  // gpu_report.h; the daemon answers with kGpuReport and closes
  kGpuReport = 20,
  kControlRequest = 21,  // control_messages.h; the daemon answers with kControlAnswer and closes
  kControlAnswer = 22,
  kExportQuery = 23,  // export_messages.h
  kExportAnswer = 24,
};

struct MessageHeader {
  uint32_t magic = kMagic;
  uint32_t version = 0;  // kProtocolVersion
  MessageType type{};
  uint32_t body_bytes = 0;
};
static_assert(sizeof(MessageHeader) == 16);

// Checks a received header. kProtocol names both versions or the problem.
Status check_header(const MessageHeader& header);

// Header and body, as they are sent. Empty if the body is longer than kMaxMessageBytes.
std::vector<std::byte> message_bytes(MessageType type, const std::vector<std::byte>& body);
// These functions need a connected stream socket.
Status write_message(int socket, MessageType type, const std::vector<std::byte>& body,
                     std::chrono::steady_clock::time_point deadline);
Result<std::pair<MessageType, std::vector<std::byte>>> read_message(
    int socket, std::chrono::steady_clock::time_point deadline);
Status write_message(const Socket& socket, MessageType type, const std::vector<std::byte>& body,
                     std::chrono::steady_clock::time_point deadline);
Result<std::pair<MessageType, std::vector<std::byte>>> read_message(
    const Socket& socket, std::chrono::steady_clock::time_point deadline);

// A message that arrives in pieces.
class PartialMessage {
 public:
  // `most`: the largest accepted size of the body, in bytes.
  explicit PartialMessage(uint32_t most) : most_(most) {}

  // Calls `receive(data, bytes)` and adds the bytes that it returns, until it returns none or the
  // message is whole. Returns whether the message is whole. kProtocol: the header is wrong.
  template <typename Receive>
  Result<bool> add(const Receive& receive) {
    for (;;) {
      RCUDA_ASSIGN_OR_RETURN(const size_t missing, count_missing());
      if (missing == 0) return true;
      const size_t have = bytes_.size();
      bytes_.resize(have + missing);
      const size_t got = receive(bytes_.data() + have, missing);
      bytes_.resize(have + got);
      if (got == 0) return false;
    }
  }
  size_t size() const { return bytes_.size(); }
  // Returns the message. Call it only once the message is whole.
  std::pair<MessageType, std::vector<std::byte>> take();

 private:
  Result<size_t> count_missing() const;

  const uint32_t most_;
  std::vector<std::byte> bytes_;
};

}  // namespace rcuda::wire
