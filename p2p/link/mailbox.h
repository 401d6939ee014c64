// Mailbox: messages to and from one peer over the rings of their Link. send() does not wait for
// room in the ring: if the ring is full, messages wait here, and the next flush() sends them in
// order. Only Link::put may block, while its send queue is full. Used only by the engine thread.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/wire/ring.h"
#include "p2p/link/messages.h"

namespace rcuda::p2p {

// kNow: the message is sent at once. kSoon: over a Link that copies by CPU it is sent, in one frame
// with others, by the next flush() or with the next message that is sent at once. When many copies
// or chunks are in progress, a round of the engine has many messages. One frame per message would
// cost one system call per message, which takes longer than the rest of the round. Over other Links
// kSoon is kNow.
enum class When : uint8_t { kNow, kSoon };

class Mailbox {
 public:
  // `link` outlives the mailbox. Its windows have at least PeerWindow::kBytes (check_windows).
  explicit Mailbox(transport::Link& link)
      : gathers_(link.traits().copies_by_cpu),
        writer_(link, PeerWindow::layout()),
        reader_(link, PeerWindow::layout()) {}
  static Status check_windows(transport::Link& link);

  // `about`: the size of the chunk that the message concerns. The message of a large chunk is sent
  // by the engine thread itself, which takes little time compared with the chunk. A thread of the
  // Link would have to stay awake to send it, and would take a core from the threads that move the
  // bytes.
  template <typename Message>
  Status send(const Message& message, When when = When::kNow, uint64_t about = 0) {
    const auto bytes = std::as_bytes(std::span(&message, 1));
    wake_ = about < kLargeBytes ? transport::Wake::kHandOver : transport::Wake::kNow;
    if (gathered_.empty() && (when == When::kNow || !gathers_)) return send_frame(bytes);
    RCUDA_RETURN_IF_ERROR(gather(bytes));
    return when == When::kNow ? send_gathered() : Status();
  }
  // Returns true if it sent waiting messages.
  Result<bool> flush();
  bool waiting() const { return !waiting_.empty() || !gathered_.empty(); }

  // Returns the next message, which is valid until the next call. Empty if no message has arrived.
  Result<std::span<const std::byte>> next();
  bool pending() const { return !frame_.empty() || reader_.pending(); }
  uint64_t next_offset() const { return reader_.next_offset(); }

 private:
  static constexpr uint64_t kLargeBytes = 512u << 10;

  Status gather(std::span<const std::byte> message);
  Status send_gathered();
  Status send_frame(std::span<const std::byte> frame);

  const bool gathers_;
  wire::RingWriter writer_;
  wire::RingReader reader_;
  std::deque<std::vector<std::byte>> waiting_;    // frames
  std::vector<std::byte> gathered_;               // messages
  transport::Wake wake_ = transport::Wake::kNow;  // of the next frame
  std::span<const std::byte> frame_;  // the part of the last frame that next() has not returned
};

}  // namespace rcuda::p2p
