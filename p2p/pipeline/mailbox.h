// Mailbox: messages to and from one peer over the rings of their Link. send() never blocks: what
// the ring cannot take waits here and goes out, in order, with the next flush(). Owned by the
// engine's thread, but for next_offset(), which is for the thread that waits.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/wire/ring.h"
#include "p2p/pipeline/messages.h"

namespace rcuda::p2p {

// kSoon: a Link that copies by CPU sends the message with the next flush() or with what is sent
// before that, in one frame with others. Where many copies or chunks are under way there are many
// messages in a round of the engine, and a frame of its own for each costs a system call, which is
// more than all the rest. Other Links send it at once.
enum class When : uint8_t { kNow, kSoon };

class Mailbox {
 public:
  // `link` outlives the mailbox; its windows hold PeerWindow::kBytes (check_windows).
  explicit Mailbox(transport::Link& link)
      : gathers_(link.traits().copies_by_cpu),
        writer_(link, PeerWindow::layout()),
        reader_(link, PeerWindow::layout()) {}
  static Status check_windows(transport::Link& link);

  // `about`: bytes of the chunk it is about. Next to what a large one takes it is nothing to send a
  // message, and a thread that stays awake to do so takes a core from those that carry the bytes.
  template <typename Message>
  Status send(const Message& message, When when = When::kNow, uint64_t about = 0) {
    const auto bytes = std::as_bytes(std::span(&message, 1));
    wake_ = about < kLargeBytes ? transport::Wake::kHandOver : transport::Wake::kNow;
    if (gathered_.empty() && (when == When::kNow || !gathers_)) return send_frame(bytes);
    RCUDA_RETURN_IF_ERROR(gather(bytes));
    return when == When::kNow ? send_gathered() : Status();
  }
  // True when something went out that had been waiting.
  Result<bool> flush();
  bool waiting() const { return !waiting_.empty() || !gathered_.empty(); }

  // The next message, valid until the next call; empty when there is none.
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
  transport::Wake wake_ = transport::Wake::kNow;  // for the next frame
  std::span<const std::byte> frame_;              // what next() has not returned of the last one
};

}  // namespace rcuda::p2p
