#include "common/tls/record_buffer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <sys/socket.h>

namespace rcuda::tls {
namespace {

// The most bytes of one receive: eight records and a part of another. They stay in the second-level
// cache until they are decrypted.
constexpr size_t kReceivedBytes = 136u << 10;
constexpr size_t kMostKept = 1u << 20;

}  // namespace

bool RecordBuffer::add(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostKept - std::min(kept_.size(), kMostKept)) {
    errno = EPROTO;
    return false;
  }
  try {
    kept_.insert(kept_.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return false;
  }
  return true;
}

ssize_t RecordBuffer::take(std::span<std::byte> to) {
  if (sealing_) {
    errno = EAGAIN;
    return -1;
  }
  if (begin_ == end_) {
    if (!reads_ahead_) {
      const ssize_t received = ::recv(socket_, to.data(), to.size(), MSG_DONTWAIT);
      if (received <= 0) return received;
      if (static_cast<size_t>(received) > most_received_) {
        errno = EPROTO;
        return -1;
      }
      most_received_ -= static_cast<size_t>(received);
      return received;
    }
    if (const ssize_t received = fill(); received <= 0) return received;
  }
  const size_t some = std::min(to.size(), end_ - begin_);
  std::memcpy(to.data(), received_.get() + begin_, some);
  begin_ += some;
  return static_cast<ssize_t>(some);
}

ssize_t RecordBuffer::fill(bool wait) {
  if (has_bytes()) return 1;
  std::byte byte;
  if (!reads_ahead_) return wait ? ::recv(socket_, &byte, 1, MSG_PEEK) : 1;
  if (!received_) received_ = std::make_unique_for_overwrite<std::byte[]>(kReceivedBytes);
  const ssize_t received =
      ::recv(socket_, received_.get(), kReceivedBytes, wait ? 0 : MSG_DONTWAIT);
  if (received <= 0) return received;
  begin_ = 0;
  end_ = static_cast<size_t>(received);
  return received;
}

void RecordBuffer::hand_over() {
  if (leaving_.empty()) {
    leaving_.swap(kept_);
  } else {
    leaving_.insert(leaving_.end(), kept_.begin(), kept_.end());
    kept_.clear();
  }
}

bool RecordBuffer::push() {
  while (sent_ < leaving_.size()) {
    const ssize_t sent = ::send(socket_, leaving_.data() + sent_, leaving_.size() - sent_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) errno = EAGAIN;
      return false;
    }
    sent_ += static_cast<size_t>(sent);
  }
  leaving_.clear();
  sent_ = 0;
  return true;
}

}  // namespace rcuda::tls
