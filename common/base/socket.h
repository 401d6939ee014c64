// Socket: a connected stream socket, plain or with a cipher. Handshakes and Links send and receive
// through it, so they do not know whether the bytes are encrypted.
//
// Threads: any. One thread may send while another receives; two threads must not send, or receive,
// at the same time. Blocking and errors: as send(2) and recv(2), and as the functions say. No
// function raises SIGPIPE.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <sys/types.h>
#include <sys/uio.h>

#include "common/base/unique_fd.h"

namespace rcuda {

// Encrypts a stream (common/tls). Never blocks. Safe for one sending and one receiving thread.
class Cipher {
 public:
  virtual ~Cipher() = default;
  // Sends some bytes of `pieces` and returns their number. -1 with EAGAIN: the socket is full. The
  // caller must repeat the call with the same bytes, or more; the cipher has begun to send them.
  virtual ssize_t send(std::span<const iovec> pieces) = 0;
  // Returns the bytes received, 0 at the end of the stream, -1 with errno otherwise.
  virtual ssize_t recv(void* data, size_t bytes, bool peek) = 0;
};

class Socket {
 public:
  Socket() = default;
  Socket(UniqueFd fd) : fd_(std::move(fd)) {}  // implicit: without a cipher
  Socket(UniqueFd fd, std::unique_ptr<Cipher> cipher)
      : fd_(std::move(fd)), cipher_(std::move(cipher)) {}

  explicit operator bool() const { return static_cast<bool>(fd_); }
  bool encrypted() const { return cipher_ != nullptr; }
  // For poll, shutdown, options and addresses; for send and recv only if there is no cipher. With
  // a cipher, received bytes may be waiting although poll() does not report the socket as readable:
  // receive until EAGAIN before a poll.
  int fd() const { return fd_.get(); }
  // Destroys the cipher.
  UniqueFd release() {
    cipher_.reset();
    return std::move(fd_);
  }

  // As sendmsg(2) and recv(2) with MSG_NOSIGNAL. Flags: MSG_DONTWAIT, MSG_WAITALL and
  // MSG_PEEK (recv). With a cipher, after EAGAIN, send() must be repeated with the same bytes, or
  // more.
  ssize_t send(std::span<const iovec> pieces, int flags) const;
  ssize_t send(const void* data, size_t bytes, int flags) const;
  ssize_t recv(void* data, size_t bytes, int flags) const;

 private:
  bool wait(short events, int timeout_option) const;

  UniqueFd fd_;
  std::unique_ptr<Cipher> cipher_;
};

}  // namespace rcuda
