#include "common/reach/same_host.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <arpa/inet.h>
#include <ifaddrs.h>

namespace rcuda::wire {
namespace {

using Name = int (*)(int, sockaddr*, socklen_t*);

Result<Endpoint> endpoint_by(Name name, int socket, const char* call) {
  sockaddr_storage address{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof address;
  if (name(socket, generic, &bytes) != 0) return Status::from_errno(errno, call);
  return endpoint_of(generic);
}

bool same_address(const Endpoint& a, const Endpoint& b) {
  return std::memcmp(a.address, b.address, sizeof a.address) == 0;
}

}  // namespace

Status not_served(uint16_t port, const std::string& server, const std::string& client) {
  return Status(Code::kDenied, "the rcuda-server for port " + std::to_string(port) + " runs as " +
                                   server + " and does not serve " + client +
                                   ": run the program as the server's user, ask its administrator "
                                   "to add you to the setting \"users\" (--users), or start your "
                                   "own server: rcuda-server --port PORT");
}

Endpoint endpoint_of(const sockaddr* address) {
  Endpoint endpoint;
  if (address->sa_family == AF_INET) {
    const auto& v4 = *reinterpret_cast<const sockaddr_in*>(address);
    endpoint.address[10] = endpoint.address[11] = 0xff;
    std::memcpy(endpoint.address + 12, &v4.sin_addr, sizeof v4.sin_addr);
    endpoint.port = ntohs(v4.sin_port);
  } else if (address->sa_family == AF_INET6) {
    const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(address);
    std::memcpy(endpoint.address, &v6.sin6_addr, sizeof v6.sin6_addr);
    endpoint.port = ntohs(v6.sin6_port);
  }
  return endpoint;
}

Result<Endpoint> own_endpoint(int socket) {
  return endpoint_by(&::getsockname, socket,
                     "reading this side's address of a connection (getsockname)");
}

Result<Endpoint> peer_endpoint(int socket) {
  return endpoint_by(&::getpeername, socket,
                     "reading the peer's address of a connection (getpeername)");
}

bool is_ipv4(const Endpoint& endpoint) {
  in6_addr address;
  std::memcpy(&address, endpoint.address, sizeof address);
  return IN6_IS_ADDR_V4MAPPED(&address);
}

bool is_loopback(const Endpoint& endpoint) {
  if (is_ipv4(endpoint)) return endpoint.address[12] == IN_LOOPBACKNET;
  return std::memcmp(endpoint.address, &in6addr_loopback, sizeof endpoint.address) == 0;
}

bool is_private(const Endpoint& endpoint) {
  if (is_loopback(endpoint)) return true;
  const uint8_t* const address = endpoint.address;
  if (is_ipv4(endpoint)) {
    const uint8_t first = address[12], second = address[13];
    return first == 10 || (first == 172 && second / 16 == 1) || (first == 192 && second == 168) ||
           (first == 169 && second == 254);
  }
  const bool unique_local = (address[0] & 0xfe) == 0xfc;
  const bool link_local = address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
  return unique_local || link_local;
}

Result<bool> any_on_this_machine(std::span<const Endpoint> endpoints) {
  if (std::any_of(endpoints.begin(), endpoints.end(), is_loopback)) return true;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) {
    return Status::from_errno(errno, "listing this machine's network addresses (getifaddrs)");
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(interfaces, &::freeifaddrs);
  for (const ifaddrs* local = interfaces; local; local = local->ifa_next) {
    if (!local->ifa_addr) continue;
    if (local->ifa_addr->sa_family != AF_INET && local->ifa_addr->sa_family != AF_INET6) continue;
    const Endpoint own = endpoint_of(local->ifa_addr);
    if (std::any_of(endpoints.begin(), endpoints.end(),
                    [&](const Endpoint& endpoint) { return same_address(own, endpoint); })) {
      return true;
    }
  }
  return false;
}

}  // namespace rcuda::wire
