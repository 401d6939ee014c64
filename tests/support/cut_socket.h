// CutSocket: a SocketLayer (common/base/socket.h) whose connection is lost at a chosen byte.
//
// It counts the bytes of both directions. After `bytes` bytes the connection ends in the way that
// Cut names. A send or recv is shortened at that byte. Threads and blocking: as Socket.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sys/socket.h>

#include "common/base/socket.h"

namespace rcuda::test {

enum class Cut {
  kReset,       // both directions fail with ECONNRESET
  kClosed,      // both directions end
  kHalfClosed,  // this side can send no more; the peer notices the end
};

class CutSocket : public SocketLayer {
 public:
  CutSocket(Socket connection, uint64_t bytes, Cut how)
      : connection_(std::move(connection)), left_(static_cast<int64_t>(bytes)), how_(how) {}

  static Socket after(uint64_t bytes, Cut how, Socket connection) {
    return Socket(std::make_unique<CutSocket>(std::move(connection), bytes, how));
  }

  ssize_t send(std::span<const iovec> pieces, int flags) override {
    if (pieces.empty()) return 0;
    const int64_t left = left_;
    if (left <= 0) return cut();
    const size_t bytes = std::min<size_t>(pieces[0].iov_len, static_cast<size_t>(left));
    const ssize_t count = connection_.send(pieces[0].iov_base, bytes, flags);
    if (count > 0) left_ -= count;
    return count;
  }
  ssize_t recv(void* data, size_t bytes, int flags) override {
    const int64_t left = left_;
    if (left <= 0 && how_ != Cut::kHalfClosed) {
      const ssize_t result = cut();
      return how_ == Cut::kClosed ? 0 : result;
    }
    const size_t some = left <= 0 ? bytes : std::min<size_t>(bytes, static_cast<size_t>(left));
    const ssize_t count = connection_.recv(data, some, flags);
    if (count > 0 && !(flags & MSG_PEEK)) left_ -= count;
    return count;
  }
  bool wait(short events, int timeout_ms) override { return connection_.wait(events, timeout_ms); }
  void shutdown(int how) override { connection_.shutdown(how); }
  bool lose(const std::string&) override { return false; }
  bool is_connected() const override { return true; }
  bool get_option(int level, int name, void* value, socklen_t* bytes) const override {
    return connection_.get_option(level, name, value, bytes);
  }
  bool set_option(int level, int name, int value) const override {
    return connection_.set_option(level, name, value);
  }
  uint32_t connections() const override { return 1; }
  std::string why_ended() const override { return {}; }
  void close_in_child() noexcept override { connection_.close_in_child(); }

 private:
  ssize_t cut() {
    connection_.shutdown(how_ == Cut::kHalfClosed ? SHUT_WR : SHUT_RDWR);
    errno = ECONNRESET;
    return -1;
  }

  const Socket connection_;
  std::atomic<int64_t> left_;
  const Cut how_;
};

}  // namespace rcuda::test
