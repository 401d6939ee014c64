// RecordBuffer: encrypted records between OpenSSL and a socket. Several records leave, and arrive,
// in one system call.
//
// Threads: add(), take(), set_sealing() and hand_over() with the mutex of the connection held,
// push() on the sending thread only, fill() and has_bytes() on the receiving thread only. Only
// fill() may block. Nothing raises SIGPIPE.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <sys/types.h>

namespace rcuda::tls {

class RecordBuffer {
 public:
  // `socket` stays open as long as this object. `reads_ahead`: take() may receive more bytes than
  // fit into `to`, so nothing else may receive from the socket later.
  RecordBuffer(int socket, bool reads_ahead) : socket_(socket), reads_ahead_(reads_ahead) {}

  // Keeps bytes to be sent. Returns false with EPROTO if it keeps too many: a peer that requests
  // answers but does not read them must not consume memory. Returns false with ENOMEM if there is
  // no memory, because no exception may pass through OpenSSL.
  bool add(std::span<const std::byte> bytes);
  // Works as recv(2) on a non-blocking socket. Returns -1 with EPROTO beyond limit_received().
  ssize_t take(std::span<std::byte> to);
  // With `reads_ahead`: receives bytes for take(), if it has none left. Returns a positive number
  // if take() has bytes; otherwise returns the result of recv(2). With `wait`, blocks as recv(2) on
  // a blocking socket; otherwise never blocks.
  //
  // Without `reads_ahead`: receives nothing, because take() receives. With `wait`, blocks until the
  // socket has bytes, and returns as recv(2) with MSG_PEEK. Otherwise returns a positive number.
  ssize_t fill(bool wait = false);
  // Whether take() has bytes that were received ahead.
  bool has_bytes() const { return begin_ < end_; }
  // During a send, OpenSSL also calls take() if it has received only a part of a handshake message.
  // The receiving thread may be in fill() at that time. So take() fails with EAGAIN while the
  // sending thread is inside OpenSSL (`sealing`).
  void set_sealing(bool sealing) { sealing_ = sealing; }
  // Limits the bytes that take() receives from now on (without `reads_ahead`).
  void limit_received(size_t most) { most_received_ = most; }
  // Gives all kept bytes to push().
  void hand_over();
  // Sends the bytes of hand_over(). Returns false with errno unless all of them are sent.
  bool push();

 private:
  const int socket_;
  const bool reads_ahead_;
  std::vector<std::byte> kept_;
  std::vector<std::byte> leaving_;
  size_t sent_ = 0;  // bytes of leaving_ that are sent
  size_t most_received_ = ~size_t{0};
  bool sealing_ = false;
  std::unique_ptr<std::byte[]> received_;
  size_t begin_ = 0, end_ = 0;  // range in received_ that take() has not returned
};

}  // namespace rcuda::tls
