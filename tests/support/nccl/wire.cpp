#include "tests/support/nccl/wire.h"

#include <cstdlib>
#include <string_view>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

namespace testnccl {
namespace {

// Limits the memory that a message of an unknown process can make this process allocate.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

bool send_all(int descriptor, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int descriptor, void* data, size_t bytes) {
  return bytes == 0 || ::recv(descriptor, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

struct Header {
  Kind kind;
  uint32_t reserved;
  uint64_t bytes;
};

in_addr own_address() {
  in_addr found{htonl(INADDR_LOOPBACK)};
  const char* name = std::getenv("NCCL_SOCKET_IFNAME");
  ifaddrs* all = nullptr;
  if (!name || ::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each; each = each->ifa_next) {
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET &&
        std::string_view(each->ifa_name).starts_with(name)) {
      found = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
      break;
    }
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace

Channel::Channel(int descriptor) : descriptor_(descriptor) {
  const int on = 1;
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Channel::~Channel() { ::close(descriptor_); }

std::shared_ptr<Channel> Channel::connect(const sockaddr_in& address) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  auto channel = std::make_shared<Channel>(descriptor);
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return nullptr;
  }
  return channel;
}

bool Channel::send(Kind kind, const Bytes& body) {
  const std::lock_guard lock(sending_);
  const Header header{kind, 0, body.size()};
  return send_all(descriptor_, &header, sizeof header) &&
         send_all(descriptor_, body.data(), body.size());
}

bool Channel::receive(Message* message) {
  Header header{};
  if (!receive_all(descriptor_, &header, sizeof header) || header.bytes > kMostBytes) return false;
  message->kind = header.kind;
  message->body.resize(header.bytes);
  return receive_all(descriptor_, message->body.data(), message->body.size());
}

void Channel::shut() { ::shutdown(descriptor_, SHUT_RDWR); }

int listen_anywhere(sockaddr_in* address) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr = own_address();
  socklen_t length = sizeof *address;
  auto* generic = reinterpret_cast<sockaddr*>(address);
  if (::bind(descriptor, generic, length) == 0 && ::listen(descriptor, SOMAXCONN) == 0 &&
      ::getsockname(descriptor, generic, &length) == 0) {
    return descriptor;
  }
  ::close(descriptor);
  return -1;
}

uint64_t random_key() {
  uint64_t key = 0;
  (void)!::getrandom(&key, sizeof key, 0);
  return key;
}

}  // namespace testnccl
