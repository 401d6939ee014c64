#include "p2p/pipeline/mailbox.h"

#include <chrono>

namespace rcuda::p2p {
namespace {

// A peer that stopped reading is found dead by its Link; until then this much may pile up.
constexpr size_t kMostWaiting = 1u << 16;

constexpr auto kAtOnce = std::chrono::steady_clock::time_point::min();

}  // namespace

Status Mailbox::check_windows(transport::Link& link) {
  return PeerWindow::layout().check(std::min(link.window().size(), link.peer_window_bytes()),
                                    std::min(link.window().size(), link.peer_window_bytes()));
}

Status Mailbox::send_bytes(std::span<const std::byte> message) {
  if (waiting_.empty()) {
    Status sent = writer_.append(message, {}, transport::Wake::kNow, kAtOnce);
    if (sent.code() != Code::kTimeout) return sent;
  }
  if (waiting_.size() >= kMostWaiting) {
    return {Code::kUnavailable, "the peer's engine has stopped reading its messages"};
  }
  waiting_.emplace_back(message.begin(), message.end());
  return {};
}

Result<bool> Mailbox::flush() {
  bool moved = false;
  while (!waiting_.empty()) {
    const Status sent = writer_.append(waiting_.front(), {}, transport::Wake::kNow, kAtOnce);
    if (sent.code() == Code::kTimeout) break;
    if (!sent.ok()) return sent;
    waiting_.pop_front();
    moved = true;
  }
  return moved;
}

}  // namespace rcuda::p2p
