// Socket: a connected stream socket, plain or with a cipher. Handshakes and Links send and receive
// through it, so they do not know whether the bytes are encrypted.
//
// Threads: any. One thread may send while another receives; two threads must not send, or receive,
// at the same time. Blocking and errors: as send(2) and recv(2), and as the functions say. No
// function raises SIGPIPE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "common/base/unique_fd.h"

namespace rcuda {

// Encrypts a stream (common/tls). Only recv() may block. Safe for one sending and one receiving
// thread.
class Cipher {
 public:
  virtual ~Cipher() = default;
  // Sends some bytes of `pieces` and returns their number. -1 with EAGAIN: the socket is full. The
  // cipher has then begun to send the bytes, so the caller must repeat the call with the same
  // bytes, or more.
  virtual ssize_t send(std::span<const iovec> pieces) = 0;
  // Returns the bytes received, 0 at the end of the stream, -1 with errno otherwise. With `wait`,
  // blocks until there are bytes, as recv(2) on a blocking socket (SO_RCVTIMEO); otherwise never.
  virtual ssize_t recv(void* data, size_t bytes, bool peek, bool wait) = 0;
  // Whether recv() can return bytes that have already been taken from the socket. Call it on the
  // receiving thread.
  virtual bool has_received() const = 0;
};

// A stream that outlives its connections (ResumableSocket). Its functions are those of Socket.
class SocketLayer {
 public:
  virtual ~SocketLayer() = default;
  virtual ssize_t send(std::span<const iovec> pieces, int flags) = 0;
  virtual ssize_t recv(void* data, size_t bytes, int flags) = 0;
  virtual bool wait(short events, int timeout_ms) = 0;
  virtual void shutdown(int how) = 0;
  virtual bool lose(const std::string& why) = 0;
  virtual bool is_connected() const = 0;
  virtual bool get_option(int level, int name, void* value, socklen_t* bytes) const = 0;
  virtual bool set_option(int level, int name, int value) const = 0;
  virtual uint32_t connections() const = 0;
  virtual std::string why_ended() const = 0;
  virtual void close_in_child() noexcept = 0;
};

class Socket {
 public:
  Socket() = default;
  Socket(UniqueFd fd) : fd_(std::move(fd)) {}  // no cipher; conversion intended
  Socket(UniqueFd fd, std::unique_ptr<Cipher> cipher)
      : fd_(std::move(fd)), cipher_(std::move(cipher)) {}
  explicit Socket(std::unique_ptr<SocketLayer> layer) : layer_(std::move(layer)) {}

  explicit operator bool() const { return fd_ || layer_; }
  bool encrypted() const { return cipher_ != nullptr; }
  bool carries_descriptors() const { return fd_ && !cipher_; }
  // The descriptor, for poll, options and addresses; for send and recv only if there is no cipher.
  // With a cipher, received bytes may be waiting although poll() does not report the socket as
  // readable: receive until EAGAIN before a poll. With a layer: -1.
  int fd() const { return fd_.get(); }
  // Destroys the cipher.
  UniqueFd release() {
    cipher_.reset();
    return std::move(fd_);
  }

  // Work as sendmsg(2) and recv(2) with MSG_NOSIGNAL. Flags: MSG_DONTWAIT, MSG_WAITALL and MSG_PEEK
  // (recv). With a cipher, after EAGAIN, send() must be repeated with the same bytes, or more.
  ssize_t send(std::span<const iovec> pieces, int flags) const;
  ssize_t send(const void* data, size_t bytes, int flags) const;
  ssize_t recv(void* data, size_t bytes, int flags) const;

  // Blocks until send() (POLLOUT) or recv() (POLLIN) can make progress, for `timeout_ms` at most
  // (-1: without limit). Returns false at the timeout.
  bool wait(short events, int timeout_ms) const;
  // Works as shutdown(2). Blocked calls of other threads return.
  void shutdown(int how) const;
  // With a layer, ends the current connection, so that the stream goes on over the next connection.
  // Returns false without a layer, and if the stream has ended.
  bool lose(const std::string& why) const { return layer_ && layer_->lose(why); }
  // Without a layer: true, also after the end of the connection.
  bool is_connected() const { return !layer_ || layer_->is_connected(); }
  // Works as getsockopt(2) on the current connection. Returns whether it succeeded.
  bool get_option(int level, int name, void* value, socklen_t* bytes) const;
  // Works as setsockopt(2) on the current connection. Returns whether it succeeded.
  bool set_option(int level, int name, int value) const;
  // With a layer: the number of connections so far. Otherwise 1.
  uint32_t connections() const { return layer_ ? layer_->connections() : 1; }
  // With a layer whose stream has ended: the reason. Otherwise empty.
  std::string why_ended() const { return layer_ ? layer_->why_ended() : std::string(); }
  // For a forked child: closes its copies of the descriptors. Async-signal-safe.
  void close_in_child() const noexcept;

 private:
  bool wait_as_kernel(short events, int timeout_option) const;

  UniqueFd fd_;
  std::unique_ptr<Cipher> cipher_;
  std::unique_ptr<SocketLayer> layer_;
};

}  // namespace rcuda
