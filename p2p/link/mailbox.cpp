#include "p2p/link/mailbox.h"

#include <chrono>

namespace rcuda::p2p {
namespace {

// The most frames that may wait; further sends fail. The Link of a dead peer normally breaks
// earlier.
constexpr size_t kMostWaiting = 1u << 16;

constexpr auto kAtOnce = std::chrono::steady_clock::time_point::min();

}  // namespace

Status Mailbox::check_windows(transport::Link& link) {
  return PeerWindow::layout().check(std::min(link.window().size(), link.peer_window_bytes()),
                                    std::min(link.window().size(), link.peer_window_bytes()));
}

Result<std::span<const std::byte>> Mailbox::next() {
  if (frame_.empty()) {
    const Result<std::span<const std::byte>> frame = reader_.try_next();
    if (!frame) return frame;
    frame_ = *frame;
  }
  const std::span<const std::byte> message = frame_.first(first_message_bytes(frame_));
  frame_ = frame_.subspan(message.size());
  return message;
}

Status Mailbox::gather(std::span<const std::byte> message) {
  if (gathered_.size() + message.size() > PeerWindow::kMaxMessageBytes) {
    RCUDA_RETURN_IF_ERROR(send_gathered());
  }
  gathered_.insert(gathered_.end(), message.begin(), message.end());
  return {};
}

Status Mailbox::send_gathered() {
  if (gathered_.empty()) return {};
  Status sent = send_frame(gathered_);
  gathered_.clear();
  return sent;
}

Status Mailbox::send_frame(std::span<const std::byte> frame) {
  if (waiting_.empty()) {
    Status sent = writer_.append(frame, {}, wake_, kAtOnce);
    if (sent.code() != Code::kTimeout) return sent;
  }
  if (waiting_.size() >= kMostWaiting) {
    return {Code::kUnavailable, "the peer worker stopped reading messages: " +
                                    std::to_string(kMostWaiting) + " of them wait to be sent"};
  }
  waiting_.emplace_back(frame.begin(), frame.end());
  return {};
}

Result<bool> Mailbox::flush() {
  bool moved = false;
  while (!waiting_.empty()) {
    const Status sent = writer_.append(waiting_.front(), {}, wake_, kAtOnce);
    if (sent.code() == Code::kTimeout) break;
    if (!sent.ok()) return sent;
    waiting_.pop_front();
    moved = true;
  }
  moved |= !gathered_.empty();
  RCUDA_RETURN_IF_ERROR(send_gathered());
  return moved;
}

}  // namespace rcuda::p2p
