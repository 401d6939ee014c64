// The part of a message that its socket has not taken yet.
//
// For one thread. Blocking: never. Errors: a message counts as done when its connection fails,
// because the peer cannot read the rest.
#pragma once

#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "common/base/socket.h"

namespace rcuda {

class Unsent {
 public:
  // Sets the message to send. The previous message must be done.
  void put(std::vector<std::byte> message) {
    message_ = std::move(message);
    sent_ = 0;
  }
  bool empty() const { return sent_ == message_.size(); }
  // Sends the bytes that the socket takes now. Returns whether the message is done. If it is not,
  // poll for POLLOUT before the next call.
  bool send(const Socket& socket) {
    while (!empty()) {
      const ssize_t sent =
          socket.send(message_.data() + sent_, message_.size() - sent_, MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
      if (sent < 0) {
        put({});
      } else {
        sent_ += static_cast<size_t>(sent);
      }
    }
    return true;
  }

 private:
  std::vector<std::byte> message_;
  size_t sent_ = 0;
};

}  // namespace rcuda
