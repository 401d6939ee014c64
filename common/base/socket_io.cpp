#include "common/base/socket_io.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "common/base/cpu_pause.h"

namespace rcuda {
namespace {

Status peer_closed() {
  return {Code::kUnavailable,
          "the peer closed the connection: its process ended or closed the session, see its log"};
}

Status no_answer() {
  return {Code::kTimeout,
          "the peer did not answer in time: its process is busy or stopped, or its host or the "
          "network is down"};
}

Status wait_for(int socket, short events, Deadline deadline) {
  while (true) {
    pollfd entry{socket, events, 0};
    const int count = ::poll(&entry, 1, poll_timeout_ms(deadline));
    if (count > 0) return {};
    if (count == 0) return no_answer();
    if (errno != EINTR) return Status::from_errno(errno, "waiting for the peer's socket (poll)");
  }
}

// Turns the kernel's errors for a connection that the peer has closed into kUnavailable.
Status transfer_error(int error, const char* call) {
  if (error == EPIPE || error == ECONNRESET) return peer_closed();
  return Status::from_errno(error, call);
}

Status check_fds(const std::vector<UniqueFd>& fds) {
  if (fds.size() > kMaxPassedFds) {
    return {Code::kProtocol, "the peer sent " + std::to_string(fds.size()) +
                                 " file descriptors with one message; the limit is " +
                                 std::to_string(kMaxPassedFds)};
  }
  if (std::all_of(fds.begin(), fds.end(), [](const UniqueFd& fd) { return bool{fd}; })) return {};
  return {Code::kSystem,
          "this process could not open a descriptor that the peer sent: raise the limit on open "
          "files (ulimit -n)"};
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

void keep_alive(int tcp_socket) {
  const auto set = [=](int level, int name, int value) {
    (void)::setsockopt(tcp_socket, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

int poll_timeout_ms(Deadline deadline) {
  if (deadline == Deadline::max()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
          .count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

ssize_t recv_spinning(const Socket& socket, void* data, size_t bytes, int flags,
                      std::chrono::nanoseconds spin) {
  // Pauses between two attempts give the kernel time to work on the socket.
  constexpr int kPauses = 32;
  if (spin.count() > 0) {
    const auto end = std::chrono::steady_clock::now() + spin;
    do {
      const ssize_t count = socket.recv(data, bytes, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
      if (count >= 0 || !would_block(errno)) return count;
      for (int i = 0; i < kPauses; ++i) cpu_pause();
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < end);
  }
  return socket.recv(data, bytes, flags);
}

Result<size_t> try_send_with_fd(int socket, std::span<const std::byte> bytes, int fd) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (would_block(errno)) return size_t{0};
  return transfer_error(errno, "sending to the peer (sendmsg)");
}

Result<size_t> try_recv_with_fds(int socket, std::span<std::byte> bytes,
                                 std::vector<UniqueFd>& fds) {
  iovec piece{bytes.data(), bytes.size()};
  msghdr message{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)] = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && would_block(errno)) return size_t{0};
  if (received < 0) return transfer_error(errno, "receiving from the peer (recvmsg)");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (received == 0) return peer_closed();
  if (message.msg_flags & MSG_CTRUNC) fds.emplace_back();
  return static_cast<size_t>(received);
}

Result<size_t> try_send_with_fd(const Socket& socket, std::span<const std::byte> bytes, int fd) {
  if (socket.carries_descriptors()) return try_send_with_fd(socket.fd(), bytes, fd);
  if (fd >= 0) {
    return Status(Code::kUnsupported,
                  "cannot send a file descriptor to the peer: encrypted and resumable sockets "
                  "carry none");
  }
  const ssize_t sent = socket.send(bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (would_block(errno)) return size_t{0};
  return transfer_error(errno, "sending to the peer");
}

Result<size_t> try_recv_with_fds(const Socket& socket, std::span<std::byte> bytes,
                                 std::vector<UniqueFd>& fds) {
  if (socket.carries_descriptors()) return try_recv_with_fds(socket.fd(), bytes, fds);
  const ssize_t received = socket.recv(bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received > 0) return static_cast<size_t>(received);
  if (received == 0) return peer_closed();
  if (would_block(errno)) return size_t{0};
  return transfer_error(errno, "receiving from the peer");
}

Status send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    RCUDA_ASSIGN_OR_RETURN(size_t sent, try_send_with_fd(socket, bytes, -1));
    if (sent == 0 && !socket.wait(POLLOUT, poll_timeout_ms(deadline))) return no_answer();
    bytes = bytes.subspan(sent);
  }
  return {};
}

// Receives before it waits: a cipher may hold bytes that poll() does not report.
Status recv_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  std::vector<UniqueFd> unwanted;
  while (!bytes.empty()) {
    RCUDA_ASSIGN_OR_RETURN(size_t received, try_recv_with_fds(socket, bytes, unwanted));
    if (received == 0 && !socket.wait(POLLIN, poll_timeout_ms(deadline))) return no_answer();
    bytes = bytes.subspan(received);
  }
  return {};
}

Status send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  return send_with_fds(socket, bytes, {}, deadline);
}

Status recv_all(int socket, std::span<std::byte> bytes, Deadline deadline) {
  std::vector<UniqueFd> unwanted;
  return recv_with_fds(socket, bytes, unwanted, deadline);
}

Result<ucred> peer_credentials(int local_socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(local_socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return Status::from_errno(errno, "reading the user of a local connection (SO_PEERCRED)");
  }
  return peer;
}

Status send_with_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                     Deadline deadline) {
  // One descriptor per message: each of the first messages carries one byte, the last message
  // carries all remaining bytes.
  while (!bytes.empty()) {
    RCUDA_RETURN_IF_ERROR(wait_for(socket, POLLOUT, deadline));
    const bool more_fds = fds.size() > 1;
    RCUDA_ASSIGN_OR_RETURN(size_t sent, try_send_with_fd(socket, more_fds ? bytes.first(1) : bytes,
                                                         fds.empty() ? -1 : fds[0]));
    if (sent != 0 && !fds.empty()) fds = fds.subspan(1);
    bytes = bytes.subspan(sent);
  }
  return {};
}

Status recv_with_fds(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>& fds,
                     Deadline deadline) {
  while (!bytes.empty()) {
    RCUDA_RETURN_IF_ERROR(wait_for(socket, POLLIN, deadline));
    RCUDA_ASSIGN_OR_RETURN(size_t received, try_recv_with_fds(socket, bytes, fds));
    RCUDA_RETURN_IF_ERROR(check_fds(fds));
    bytes = bytes.subspan(received);
  }
  return {};
}

Result<size_t> recv_packet_with_fds(int socket, std::span<std::byte> bytes,
                                    std::vector<UniqueFd>& fds, Deadline deadline) {
  while (true) {
    RCUDA_RETURN_IF_ERROR(wait_for(socket, POLLIN, deadline));
    Result<size_t> received = try_recv_with_fds(socket, bytes, fds);
    if (!received) return received;
    RCUDA_RETURN_IF_ERROR(check_fds(fds));
    if (*received != 0) return received;
  }
}

}  // namespace rcuda
