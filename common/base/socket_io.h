// Blocking socket helpers with a deadline, for handshakes, and descriptor passing over Unix
// sockets.
//
// Any thread may call. The functions work on blocking and non-blocking sockets, never raise
// SIGPIPE, and never allocate a size that the peer requests. Errors: kTimeout, kUnavailable when
// the peer has closed, kProtocol for too many descriptors, otherwise kSystem.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include <sys/socket.h>
#include <sys/types.h>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda {

using Deadline = std::chrono::steady_clock::time_point;

// The most descriptors that one message may carry.
inline constexpr size_t kMaxPassedFds = 4;

// Makes the kernel end an idle connection when the peer's host has not answered for a minute.
void keep_alive(int tcp_socket);

// The remaining milliseconds for poll(), rounded up; -1 for Deadline::max().
int poll_timeout_ms(Deadline deadline);

Status send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
Status recv_all(int socket, std::span<std::byte> bytes, Deadline deadline);
Status send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
Status recv_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);

// The process at the other end of a Unix socket, as it was when it connected or began to listen.
Result<ucred> peer_credentials(int local_socket);

// Sends `bytes` and the descriptors. Several descriptors need a stream socket and at least as many
// bytes, because each descriptor is sent in a sendmsg() of its own.
Status send_with_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                     Deadline deadline);
// Receives exactly `bytes` and appends the descriptors that arrived (close-on-exec) to `fds`.
Status recv_with_fds(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>& fds,
                     Deadline deadline);

// Receives one message of a packet socket, of any length; bytes that do not fit are cut off. The
// end of the connection is kUnavailable.
Result<size_t> recv_packet_with_fds(int socket, std::span<std::byte> bytes,
                                    std::vector<UniqueFd>& fds, Deadline deadline);

// Make one attempt without blocking. Return the number of bytes moved, 0 if the call would block,
// or an error. The end of the stream is kUnavailable. `fds` has an empty entry for a descriptor
// that arrived when this process had no free number for it. A socket with a cipher or a layer
// carries no descriptors: kUnsupported.
Result<size_t> try_send_with_fd(int socket, std::span<const std::byte> bytes, int fd);
Result<size_t> try_recv_with_fds(int socket, std::span<std::byte> bytes,
                                 std::vector<UniqueFd>& fds);
Result<size_t> try_send_with_fd(const Socket& socket, std::span<const std::byte> bytes, int fd);
Result<size_t> try_recv_with_fds(const Socket& socket, std::span<std::byte> bytes,
                                 std::vector<UniqueFd>& fds);

// Works as Socket::recv() on a blocking socket, but polls for `spin` before it sleeps. May return
// fewer bytes than requested, also with MSG_WAITALL.
ssize_t recv_spinning(const Socket& socket, void* data, size_t bytes, int flags,
                      std::chrono::nanoseconds spin);

// Return the bytes of a struct that a handshake sends or receives.
template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace rcuda
