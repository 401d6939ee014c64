#include "common/transport/verbs/hello.h"

#include <cstring>
#include <string>

#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"

namespace rcuda::transport::verbs {
namespace {

constexpr auto kRefusalPatience = std::chrono::milliseconds(300);

// Receives the first word of a message.
Status receive_magic(const Socket& control, uint64_t expected, Deadline deadline) {
  uint64_t magic = 0;
  RCUDA_RETURN_IF_ERROR(recv_all(control, writable_bytes_of(magic), deadline));
  if (magic == expected) return {};
  if (magic != kRefusalMagic) {
    return {Code::kProtocol,
            "the peer's message does not fit this build's verbs protocol: install the same build "
            "of rcuda on both hosts"};
  }
  Refusal refusal;
  RCUDA_RETURN_IF_ERROR(
      recv_all(control, writable_bytes_of(refusal).subspan(sizeof magic), deadline));
  refusal.why[sizeof refusal.why - 1] = '\0';
  return {Code::kUnavailable, std::string("the peer refused verbs: ") + refusal.why};
}

}  // namespace

void write_address(const Address& address, uint16_t port, Hello* hello) {
  hello->family = address.storage.ss_family;
  hello->port = port;
  if (hello->family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    std::memcpy(hello->address, &v6->sin6_addr, 16);
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    std::memcpy(hello->address, &v4->sin_addr, 4);
  }
}

Address read_address(const Hello& hello) {
  Address address;
  address.storage.ss_family = hello.family;
  if (hello.family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    std::memcpy(&v6->sin6_addr, hello.address, 16);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    std::memcpy(&v4->sin_addr, hello.address, 4);
  }
  address.set_port(hello.port);
  return address;
}

void send_refusal(const Socket& control, const Status& status) {
  Refusal refusal;
  status.context().copy(refusal.why, sizeof refusal.why - 1);
  const Deadline deadline = std::chrono::steady_clock::now() + kRefusalPatience;
  (void)send_all(control, bytes_of(refusal), deadline);
}

Status send_ready(const Socket& control, Deadline deadline) {
  return send_all(control, bytes_of(kReadyMagic), deadline);
}

Status receive_ready(const Socket& control, Deadline deadline) {
  return receive_magic(control, kReadyMagic, deadline);
}

bool ready_has_come(const Socket& control) {
  uint64_t magic = 0;
  return control.recv(&magic, sizeof magic, MSG_PEEK | MSG_DONTWAIT) == sizeof magic &&
         magic == kReadyMagic;
}

Status receive_hello(const Socket& control, Hello* peer, Deadline deadline) {
  RCUDA_RETURN_IF_ERROR(receive_magic(control, kHelloMagic, deadline));
  peer->greeting.magic = kHelloMagic;
  RCUDA_RETURN_IF_ERROR(
      recv_all(control, writable_bytes_of(*peer).subspan(sizeof peer->greeting.magic), deadline));
  RCUDA_RETURN_IF_ERROR(check_greeting(peer->greeting, kHelloMagic, "verbs"));
  if (peer->family == AF_INET || peer->family == AF_INET6) return {};
  return {Code::kProtocol, "the peer's RDMA address has the unknown family " +
                               std::to_string(peer->family) + " (IPv4 and IPv6 are supported)"};
}

}  // namespace rcuda::transport::verbs
