#include "server/daemon/connection/listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/passing_error.h"
#include "common/base/socket_io.h"
#include "common/reach/connect.h"
#include "common/reach/same_host.h"

namespace rcuda::server {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

std::string text_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = {}, service[NI_MAXSERV] = {};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, service,
                    sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return address.ss_family == AF_INET6 ? "[" + std::string(host) + "]:" + service
                                       : std::string(host) + ":" + service;
}

Result<UniqueFd> listen_tcp(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    const bool passes = error == EAI_AGAIN || error == EAI_MEMORY;
    return Status(passes ? Code::kUnavailable : Code::kInvalidArgument,
                  "cannot listen on \"" + host + "\" (" + ::gai_strerror(error) +
                      "): --listen takes an address of this machine");
  }
  const AddressList list(found, &::freeaddrinfo);
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status::from_errno(errno, "making the socket that listens");
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // An IPv6 socket listens for IPv4 too. is_at() and the daemon's tickets rely on this: with the
  // sysctl bindv6only, another process could otherwise listen for IPv4 at the same port.
  const int off = 0;
  if (found->ai_family == AF_INET6 &&
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) {
    return Status::from_errno(errno, "listening for IPv4 as well on " + host);
  }
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return Status(Code::kUnavailable, "port " + std::to_string(port) +
                                            " is taken, perhaps by another rcuda-server: choose "
                                            "another port with --port");
    }
    return Status(
        may_pass(errno) ? Code::kUnavailable : Code::kInvalidArgument,
        "cannot listen on " + host + ":" + std::to_string(port) + " (" + std::strerror(errno) +
            "): --listen takes an address of this machine, and ports below 1024 need root");
  }
  return socket;
}

// Fills in the address of the TCP socket.
void describe(Listener* listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(listener->tcp.get(), reinterpret_cast<sockaddr*>(&address), &length);
  listener->port =
      ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(address).sin_port);
  listener->address = text_of(address, length);
  const wire::Endpoint& endpoint = listener->endpoint =
      wire::endpoint_of(reinterpret_cast<sockaddr*>(&address));
  listener->is_loopback = wire::is_loopback(endpoint);
  listener->is_private = wire::is_private(endpoint);
}

}  // namespace

bool Listener::is_at(const wire::Endpoint& server) const {
  if (server.port != port) return false;
  const wire::Endpoint any_v6, v4 = wire::is_ipv4(endpoint) ? endpoint : wire::Endpoint();
  if (std::equal(std::begin(endpoint.address), std::end(endpoint.address), any_v6.address)) {
    return true;  // it listens at all addresses, of IPv4 too
  }
  const bool any_v4 = wire::is_ipv4(v4) && std::all_of(v4.address + 12, v4.address + 16,
                                                       [](uint8_t byte) { return byte == 0; });
  return any_v4
             ? wire::is_ipv4(server)
             : std::equal(std::begin(endpoint.address), std::end(endpoint.address), server.address);
}

Result<Listener> listen_on(const std::string& address, uint16_t port) {
  Listener listener;
  RCUDA_ASSIGN_OR_RETURN(listener.tcp, listen_tcp(address, port));
  describe(&listener);
  Result<LocalListener> local = LocalListener::abstract(listener.port);
  if (local.ok()) {
    listener.local = std::move(local).value();
  } else if (::geteuid() != 0) {
    return local.status();
  }
  return listener;
}

Status listen_as_root(Listener* listener, std::optional<gid_t> only_group) {
  const std::string abstract = wire::LocalAddress(listener->port).text();
  Result<LocalListener> roots = LocalListener::in_roots_folder(listener->port, only_group);
  if (roots.ok()) {
    listener->roots = std::move(roots).value();
    Result<LocalListener> containers = LocalListener::for_containers(listener->port);
    if (containers.ok()) {
      listener->containers = std::move(containers).value();
    } else {
      RCUDA_WARN("containers of this machine cannot use the server by its local socket: %s",
                 containers.status().message().c_str());
    }
    if (!listener->local) {
      RCUDA_WARN(
          "another process has taken the socket name %s (ss -xlp shows which): clients of this "
          "machine find this server only at %s",
          abstract.c_str(), wire::LocalAddress::in_roots_folder(listener->port).text().c_str());
    }
    return {};
  }
  if (!listener->local) {
    return Status(roots.status())
        .with_context("another process has taken the socket name " + abstract +
                      " (ss -xlp shows which), and the server cannot listen in " +
                      wire::LocalAddress::kRootsFolder + " either");
  }
  RCUDA_WARN(
      "no local socket in %s (%s): clients of this machine find this server only at %s, a name "
      "that any user can take while the server is stopped",
      wire::LocalAddress::kRootsFolder, roots.status().message().c_str(), abstract.c_str());
  return {};
}

CarriedListener carry(const Listener& listener) {
  return {{listener.tcp.get(), ""},
          listener.local.carry(),
          listener.roots.carry(),
          listener.containers.carry()};
}

Listener restore(const CarriedListener& carried) {
  Listener listener;
  listener.tcp.reset(carried.tcp.descriptor);
  describe(&listener);
  listener.local = LocalListener::restore(carried.local);
  listener.roots = LocalListener::restore(carried.roots);
  listener.containers = LocalListener::restore(carried.containers);
  return listener;
}

std::string origin_of(const wire::Endpoint& client) {
  if (wire::is_loopback(client)) return "this machine";
  char text[INET6_ADDRSTRLEN] = {};
  if (wire::is_ipv4(client)) return ::inet_ntop(AF_INET, client.address + 12, text, sizeof text);
  wire::Endpoint network;
  std::copy_n(client.address, 8, network.address);
  return std::string(::inet_ntop(AF_INET6, network.address, text, sizeof text)) + "/64";
}

Result<Accepted> accept_from(int listening, bool local) {
  Accepted accepted;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  // The socket is blocking, because the Link of the worker expects a blocking socket. The daemon
  // itself only reads bytes that have arrived.
  accepted.socket.reset(
      ::accept4(listening, reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC));
  if (!accepted.socket) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED) {
      return accepted;
    }
    return Status::from_errno(errno, "accepting a connection");
  }
  const int socket = accepted.socket.get();
  if (local) {
    RCUDA_ASSIGN_OR_RETURN(const ucred credentials, peer_credentials(socket));
    accepted.origin = "uid " + std::to_string(credentials.uid);
    accepted.peer = "pid " + std::to_string(credentials.pid) + " of " + accepted.origin;
  } else {
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    RCUDA_ASSIGN_OR_RETURN(accepted.connection.server, wire::own_endpoint(socket));
    accepted.connection.client = wire::endpoint_of(reinterpret_cast<sockaddr*>(&address));
    accepted.origin = origin_of(accepted.connection.client);
    accepted.peer = text_of(address, length);
  }
  return accepted;
}

}  // namespace rcuda::server
