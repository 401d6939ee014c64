// RecordBuffer: encrypted records between OpenSSL and a socket. Several records leave, and arrive,
// in one system call.
//
// Threads: add(), take() and hand_over() with the mutex of the connection held, push() on the
// sending thread only. Nothing blocks, and nothing raises SIGPIPE.
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

  // Keeps bytes to be sent. False, and EPROTO, if too many have been kept: a peer that asks for
  // answers, and does not let this side send them, costs no memory. False, and ENOMEM, without
  // memory: no exception may pass through OpenSSL.
  bool add(std::span<const std::byte> bytes);
  // As recv(2) on a non-blocking socket. -1, and EPROTO, beyond the limit.
  ssize_t take(std::span<std::byte> to);
  // How many more bytes may be received.
  void limit_received(size_t most) { most_received_ = most; }
  // Gives all kept bytes to push().
  void hand_over();
  // Sends what was handed over. False, with errno, unless all of it is sent.
  bool push();

 private:
  const int socket_;
  const bool reads_ahead_;
  std::vector<std::byte> kept_;
  std::vector<std::byte> leaving_;
  size_t sent_ = 0;  // of leaving_
  size_t most_received_ = ~size_t{0};
  std::unique_ptr<std::byte[]> received_;
  size_t begin_ = 0, end_ = 0;  // of the bytes in received_ that nobody has taken
};

}  // namespace rcuda::tls
