#include "common/wire/connect.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>

#include "common/base/socket_io.h"

namespace rcuda::wire {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

std::string label(const std::string& host, uint16_t port) {
  return host + ":" + std::to_string(port);
}

Result<AddressList> resolve_host(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return Status(Code::kUnavailable, "cannot resolve the host \"" + host + "\" (" +
                                          gai_strerror(error) + "): check its name");
  }
  return AddressList(list, &freeaddrinfo);
}

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  if (a->sa_family == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, 16) == 0;
  }
  return false;
}

// Of 127.0.0.0/8 the interface carries one address, but all are this machine's: Debian gives
// 127.0.1.1 to its name.
bool is_loopback(const sockaddr* address) {
  const uint8_t* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes =
        reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& long_address = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&long_address)) bytes = long_address.s6_addr + 12;
  }
  return bytes != nullptr && bytes[0] == IN_LOOPBACKNET;
}

bool is_this_machine(const addrinfo* addresses) {
  for (const addrinfo* address = addresses; address; address = address->ai_next) {
    if (is_loopback(address->ai_addr)) return true;
  }
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool found = false;
  for (const addrinfo* address = addresses; address && !found; address = address->ai_next) {
    for (const ifaddrs* local = interfaces; local && !found; local = local->ifa_next) {
      found = local->ifa_addr && same_address(address->ai_addr, local->ifa_addr);
    }
  }
  freeifaddrs(interfaces);
  return found;
}

// Zero: for ever.
void set_send_timeout(int socket, std::chrono::microseconds timeout) {
  const timeval value{timeout.count() / 1'000'000, timeout.count() % 1'000'000};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value);
}

// connect() waits while the server's queue of callers is full; SO_SNDTIMEO bounds that.
Result<UniqueFd> connect_unix(uint16_t port, Clock::time_point deadline) {
  using std::chrono::microseconds;
  const LocalAddress address(port);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Status::from_errno(errno, "socket");
  int error;
  do {
    const auto left = std::chrono::ceil<microseconds>(deadline - Clock::now());
    set_send_timeout(socket.get(), std::max(left, microseconds(1)));
    error = ::connect(socket.get(), address.get(), address.bytes()) == 0 ? 0 : errno;
  } while (error == EINTR && Clock::now() < deadline);
  if (error == EAGAIN || error == EINTR) {
    return Status(Code::kTimeout, "the rcuda-server on this machine for port " +
                                      std::to_string(port) +
                                      " takes no callers: is it stopped? see its log");
  }
  if (error != 0) {
    return Status(Code::kUnavailable, "no rcuda-server listens on this machine for port " +
                                          std::to_string(port) + " (" + std::strerror(error) +
                                          "); start one: rcuda-server --port " +
                                          std::to_string(port));
  }
  set_send_timeout(socket.get(), microseconds(0));
  return socket;
}

// Connects to one address; 0 or an errno.
int connect_address(const addrinfo& address, Clock::time_point deadline, UniqueFd* out) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd wait{socket.get(), POLLOUT, 0};
    int ready;
    do {
      ready = ::poll(&wait, 1, poll_timeout_ms(deadline));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  const int flags = fcntl(socket.get(), F_GETFL);
  fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  *out = std::move(socket);
  return 0;
}

// Each address has an equal share of the time left: one that is silent, as IPv6 behind a firewall,
// leaves the others theirs.
Result<UniqueFd> connect_any(const addrinfo* addresses, const std::string& where,
                             Clock::time_point deadline) {
  int left = 0;
  for (const addrinfo* address = addresses; address; address = address->ai_next) ++left;
  int error = EHOSTUNREACH;
  for (const addrinfo* address = addresses; address; address = address->ai_next) {
    const Clock::time_point now = Clock::now();
    UniqueFd socket;
    error = connect_address(*address, now + (deadline - now) / left--, &socket);
    if (error == 0) return socket;
  }
  std::string mend = "check host and port, and that rcuda-server runs there";
  if (error == ECONNREFUSED)
    mend = "nothing listens there: start rcuda-server (--listen for other hosts)";
  if (error == ETIMEDOUT) mend = "no answer: check the host, the network and its firewall";
  return Status(Code::kUnavailable,
                "cannot connect to " + where + " (" + std::strerror(error) + "); " + mend);
}

}  // namespace

LocalAddress::LocalAddress(uint16_t port) {
  address_.sun_family = AF_UNIX;
  // A name that begins with a zero byte is abstract.
  const std::string name = '\0' + ("rcuda-" + std::to_string(port));
  std::memcpy(address_.sun_path, name.data(), name.size());
  bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
}

std::string LocalAddress::text() const { return std::string("@") + (address_.sun_path + 1); }

Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, Clock::time_point deadline) {
  Result<AddressList> addresses = resolve_host(host, port);
  if (!addresses) return addresses.status();
  return connect_any(addresses->get(), label(host, port), deadline);
}

Result<UniqueFd> connect_again(int socket, Clock::time_point deadline) {
  sockaddr_storage peer{};
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  socklen_t bytes = sizeof peer;
  if (::getpeername(socket, address, &bytes) != 0) return Status::from_errno(errno, "getpeername");
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getnameinfo(address, bytes, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  addrinfo only{};
  only.ai_family = peer.ss_family;
  only.ai_addr = address;
  only.ai_addrlen = bytes;
  return connect_any(&only, std::string(host) + ":" + port, deadline);
}

Result<Connection> connect_server(const std::string& host, uint16_t port, Medium medium,
                                  std::chrono::milliseconds timeout) {
  Result<AddressList> addresses = resolve_host(host, port);
  if (!addresses) {
    const Status& status = addresses.status();
    return Status(status.code(), status.context() + " in RCUDA_DEVICES");
  }
  const Clock::time_point deadline = Clock::now() + timeout;
  if (medium == Medium::kShm || medium == Medium::kAuto) {
    if (is_this_machine(addresses->get())) {
      Result<UniqueFd> socket = connect_unix(port, deadline);
      if (socket) return Connection{std::move(socket).value(), Medium::kShm};
      const bool listens = socket.status().code() == Code::kTimeout;
      if (medium == Medium::kShm || listens) return socket.status();
    } else if (medium == Medium::kShm) {
      return Status(
          Code::kInvalidArgument,
          host + " is another machine; shared memory reaches this one only: use tcp or verbs");
    }
  }
  Result<UniqueFd> socket = connect_any(addresses->get(), label(host, port), deadline);
  if (!socket) return socket.status();
  const Medium chosen = medium == Medium::kVerbs ? medium : Medium::kTcp;
  return Connection{std::move(socket).value(), chosen};
}

}  // namespace rcuda::wire
