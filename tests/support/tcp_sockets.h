// TCP sockets of this machine. Any thread. Blocking: nothing that takes long. Errors: the system's.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::test {

inline sockaddr_in tcp_address(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  (void)::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

// If `*port` is 0, chooses a free port and stores its number there.
inline Result<UniqueFd> bound_tcp(const std::string& host, uint16_t* port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = tcp_address(host, *port);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof address;
  if (!socket || ::bind(socket.get(), generic, bytes) != 0 ||
      ::getsockname(socket.get(), generic, &bytes) != 0) {
    return Status::from_errno(errno, "binding a socket to " + host);
  }
  *port = ntohs(address.sin_port);
  return socket;
}

inline Result<UniqueFd> listening_tcp(const std::string& host, uint16_t* port) {
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, bound_tcp(host, port));
  if (::listen(socket.get(), 64) != 0) return Status::from_errno(errno, "listening at " + host);
  return socket;
}

// `from`: the client's address.
inline Result<UniqueFd> connected_tcp(const std::string& host, uint16_t port,
                                      const std::string& from = "127.0.0.1") {
  uint16_t any = 0;
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, bound_tcp(from, &any));
  const sockaddr_in address = tcp_address(host, port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Status::from_errno(errno, "connecting to " + host);
  }
  return socket;
}

// The client's and the server's end of a connection.
inline Result<std::pair<UniqueFd, UniqueFd>> tcp_pair() {
  uint16_t port = 0;
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd listener, listening_tcp("127.0.0.1", &port));
  RCUDA_ASSIGN_OR_RETURN(UniqueFd client, connected_tcp("127.0.0.1", port));
  UniqueFd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server) return Status::from_errno(errno, "accepting a connection");
  return std::pair(std::move(client), std::move(server));
}

}  // namespace rcuda::test
