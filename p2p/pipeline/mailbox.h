// Mailbox: messages to and from one peer over the rings of their Link. send() never blocks: what
// the ring cannot take waits here and goes out, in order, with the next flush(). Owned by the
// engine's thread, but for pending_offset(), which is for the thread that waits.
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

class Mailbox {
 public:
  // `link` outlives the mailbox; its windows hold PeerWindow::kBytes (check_windows).
  explicit Mailbox(transport::Link& link)
      : writer_(link, PeerWindow::layout()), reader_(link, PeerWindow::layout()) {}
  static Status check_windows(transport::Link& link);

  template <typename Message>
  Status send(const Message& message) {
    return send_bytes(std::as_bytes(std::span(&message, 1)));
  }
  // True when something went out that had been waiting.
  Result<bool> flush();
  bool waiting() const { return !waiting_.empty(); }

  // The next message, valid until the next call; empty when there is none.
  Result<std::span<const std::byte>> next() { return reader_.try_next(); }
  bool pending() const { return reader_.pending(); }
  uint64_t next_offset() const { return reader_.next_offset(); }

 private:
  Status send_bytes(std::span<const std::byte> message);

  wire::RingWriter writer_;
  wire::RingReader reader_;
  std::deque<std::vector<std::byte>> waiting_;
};

}  // namespace rcuda::p2p
