#include "common/base/socket.h"

#include <cerrno>

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace rcuda {

// Waits as the kernel would in a blocking call: until the socket is ready, at most for the time
// that SO_RCVTIMEO or SO_SNDTIMEO sets. Returns false with errno if it is not ready.
bool Socket::wait_as_kernel(short events, int timeout_option) const {
  timeval limit{};
  socklen_t size = sizeof limit;
  (void)::getsockopt(fd(), SOL_SOCKET, timeout_option, &limit, &size);
  const auto milliseconds = static_cast<int>(limit.tv_sec * 1000 + limit.tv_usec / 1000);
  pollfd entry{fd(), events, 0};
  const int ready = ::poll(&entry, 1, milliseconds == 0 ? -1 : milliseconds);
  if (ready == 0) errno = EAGAIN;
  return ready > 0;
}

ssize_t Socket::send(std::span<const iovec> pieces, int flags) const {
  if (layer_) return layer_->send(pieces, flags);
  if (!cipher_) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    return ::sendmsg(fd(), &message, flags | MSG_NOSIGNAL);
  }
  for (;;) {
    const ssize_t sent = cipher_->send(pieces);
    if (sent >= 0 || errno != EAGAIN || (flags & MSG_DONTWAIT)) return sent;
    if (!wait_as_kernel(POLLOUT, SO_SNDTIMEO)) return -1;
  }
}

ssize_t Socket::send(const void* data, size_t bytes, int flags) const {
  const iovec piece{const_cast<void*>(data), bytes};
  return send({&piece, 1}, flags);
}

ssize_t Socket::recv(void* data, size_t bytes, int flags) const {
  if (layer_) return layer_->recv(data, bytes, flags);
  if (!cipher_) return ::recv(fd(), data, bytes, flags);
  auto* const to = static_cast<std::byte*>(data);
  const bool wants_all = flags & MSG_WAITALL, peeks = flags & MSG_PEEK;
  size_t received = 0;
  for (;;) {
    const bool waits = !(flags & MSG_DONTWAIT) && (received == 0 || wants_all);
    const ssize_t count = cipher_->recv(to + received, bytes - received, peeks, waits);
    // The next call returns the end of the stream or the error again.
    if (count <= 0) return received ? static_cast<ssize_t>(received) : count;
    received += static_cast<size_t>(count);
    // If the cipher has no further bytes, another recv() would only cost a system call.
    if (received == bytes || peeks || (!wants_all && !cipher_->has_received())) break;
  }
  return static_cast<ssize_t>(received);
}

bool Socket::wait(short events, int timeout_ms) const {
  if (layer_) return layer_->wait(events, timeout_ms);
  pollfd entry{fd(), events, 0};
  return ::poll(&entry, 1, timeout_ms) != 0;
}

void Socket::shutdown(int how) const {
  layer_ ? layer_->shutdown(how) : void(::shutdown(fd(), how));
}

bool Socket::get_option(int level, int name, void* value, socklen_t* bytes) const {
  return layer_ ? layer_->get_option(level, name, value, bytes)
                : ::getsockopt(fd(), level, name, value, bytes) == 0;
}

bool Socket::set_option(int level, int name, int value) const {
  return layer_ ? layer_->set_option(level, name, value)
                : ::setsockopt(fd(), level, name, &value, sizeof value) == 0;
}

void Socket::close_in_child() const noexcept {
  layer_ ? layer_->close_in_child() : void(::close(fd()));
}

}  // namespace rcuda
