#include "tools/rcuda-doctor/probe.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"
#include "common/base/unique_fd.h"
#include "common/reach/connect.h"
#include "common/transport/media.h"

namespace rcuda::doctor {
namespace {

using transport::Bootstrap;
using transport::Link;
using transport::Medium;
using Clock = std::chrono::steady_clock;

constexpr size_t kBlockBytes = 64u << 20;
constexpr auto kPatience = std::chrono::seconds(20);
constexpr uint64_t kMagic = 0x32726f7463646372;  // "rcdctor2"

// The first message on a connection: the name of its medium, or an empty name for a further socket
// of a Link.
struct Request {
  uint64_t magic = kMagic;
  char medium[wire::kMaxMediumName] = {};
};

constexpr char kMend[] =
    "run rcuda-doctor on both hosts and fix its findings; then see docs/rdma.md, \"How it fails\"";

// Sends the first message of a new connection.
Result<UniqueFd> request(Result<UniqueFd> socket, std::string_view medium) {
  if (!socket) return socket;
  Request request;
  medium.copy(request.medium, sizeof request.medium);
  RCUDA_RETURN_IF_ERROR(send_all(socket->get(), bytes_of(request), Clock::now() + kPatience));
  return socket;
}

uint64_t load(Link& link) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(link.window().data()))
      .load(std::memory_order_acquire);
}

Status move(Link& link, bool write, transport::RegionId region, std::vector<std::byte>& bytes) {
  std::promise<Status> over;
  const auto done = [&](const Status& status) { over.set_value(status); };
  if (write) {
    link.write(region, 0, bytes.data(), bytes.size(), done);
  } else {
    link.read(region, 0, bytes.data(), bytes.size(), done);
  }
  return over.get_future().get();
}

// The server exposes a block and waits for the client to finish.
Status serve_link(Link& link) {
  std::vector<std::byte> block(kBlockBytes);
  RCUDA_ASSIGN_OR_RETURN(transport::Region region, link.expose(block.data(), block.size()));
  const auto id = static_cast<uint64_t>(region.id);
  RCUDA_RETURN_IF_ERROR(link.put(0, std::as_bytes(std::span(&id, 1)), {}, transport::Wake::kYes));
  (void)link.wait([] { return false; }, Clock::now() + 3 * kPatience);
  return {};
}

Status measure(Link& link, std::string* figures) {
  RCUDA_RETURN_IF_ERROR(link.wait([&] { return load(link) != 0; }, Clock::now() + kPatience));
  const transport::RegionId region{load(link)};
  std::vector<std::byte> out(kBlockBytes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 131 >> 3);
  std::vector<std::byte> in(kBlockBytes);
  const auto gigabytes_per_s = [](Clock::time_point start) {
    return kBlockBytes / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
  };
  auto start = Clock::now();
  RCUDA_RETURN_IF_ERROR(move(link, true, region, out));
  const double written = gigabytes_per_s(start);
  start = Clock::now();
  RCUDA_RETURN_IF_ERROR(move(link, false, region, in));
  const double read = gigabytes_per_s(start);
  if (std::memcmp(in.data(), out.data(), kBlockBytes) != 0) {
    return {Code::kProtocol, "the bytes read back differ from the bytes written"};
  }
  char text[100];
  std::snprintf(text, sizeof text, "sent 64 MiB at %.2f GB/s, read it back at %.2f GB/s, verified",
                written, read);
  *figures = text;
  return {};
}

Result<std::unique_ptr<Link>> make(const Medium& medium, Bootstrap bootstrap) {
  bootstrap.timeout = kPatience;
  return transport::make_link(medium, std::move(bootstrap), {.window_bytes = 1u << 20});
}

// `medium` is null for a further socket of a Link.
struct Caller {
  UniqueFd socket;
  const Medium* medium = nullptr;
};

// Whether accept() returns this error for a fault of the new connection, and not of the listening
// socket (accept(2)).
bool is_of_connection(int sys_errno) {
  constexpr int kReasons[] = {ECONNABORTED, EHOSTDOWN,   EHOSTUNREACH, EINTR,
                              ENETDOWN,     ENETUNREACH, ENONET,       ENOPROTOOPT,
                              EOPNOTSUPP,   EPROTO,      ETIMEDOUT};
  return std::find(std::begin(kReasons), std::end(kReasons), sys_errno) != std::end(kReasons);
}

// Skips connections that end before they are accepted. Returns an error only if the listening
// socket has failed.
Result<UniqueFd> accept_socket(int listener) {
  while (true) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) return socket;
    if (!is_of_connection(errno)) return Status::from_errno(errno, "cannot accept connections");
  }
}

// Reads a caller's request. An error concerns only this connection.
Result<Caller> take_request(UniqueFd socket) {
  Request request;
  RCUDA_RETURN_IF_ERROR(
      recv_all(socket.get(), writable_bytes_of(request), Clock::now() + kPatience));
  const std::string_view name(request.medium, ::strnlen(request.medium, sizeof request.medium));
  const Medium* const medium = transport::find_medium(name);
  if (request.magic != kMagic || (!name.empty() && !medium)) {
    return Status{Code::kProtocol, "the caller is not rcuda-doctor, or names an unknown transport"};
  }
  return Caller{std::move(socket), medium};
}

Finding probe_medium(const std::string& host, uint16_t port, const Medium& medium) {
  const std::string what = std::string("probe of ") + host + " over " + medium.name() + ": ";
  Result<UniqueFd> control =
      request(wire::connect_tcp(host, port, Clock::now() + kPatience), medium.name());
  if (!control) {
    return {
        Verdict::kBad, what + control.status().message(),
        "run 'rcuda-doctor --listen' on " + host + ", and open its port " + std::to_string(port)};
  }
  if (const Status usable = medium.usable(control->get()); !usable.ok()) {
    return {Verdict::kNote, what + usable.context(),
            "name the server by its address on the RDMA network"};
  }
  const Result<wire::PeerAddress> server = wire::peer_address(control->get());
  if (!server) return {Verdict::kBad, what + server.status().message(), kMend};
  Bootstrap bootstrap;
  bootstrap.control = std::move(*control);
  bootstrap.open_stream = [&server](int) -> Result<Socket> {
    RCUDA_ASSIGN_OR_RETURN(UniqueFd stream,
                           request(wire::connect_again(*server, Clock::now() + kPatience), {}));
    return Socket(std::move(stream));
  };
  Result<std::unique_ptr<Link>> link = make(medium, std::move(bootstrap));
  if (!link) return {Verdict::kBad, what + link.status().message(), kMend};
  std::string figures;
  if (const Status status = measure(**link, &figures); !status.ok()) {
    return {Verdict::kBad, what + status.message(), kMend};
  }
  return {Verdict::kGood, what + figures, ""};
}

}  // namespace

Status serve_probes(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(address.empty() ? nullptr : address.c_str(),
                                  std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return Status{Code::kNotFound,
                  "cannot listen on --address " + address + ": " + ::gai_strerror(error)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> local(list, &::freeaddrinfo);
  const UniqueFd listener(::socket(local->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener || ::bind(listener.get(), local->ai_addr, local->ai_addrlen) != 0 ||
      ::listen(listener.get(), 16) != 0) {
    return Status::from_errno(errno, "cannot listen on port " + std::to_string(port));
  }
  std::fprintf(stderr, "rcuda-doctor: waiting for probes on port %d\n", port);
  while (true) {
    RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, accept_socket(listener.get()));
    Result<Caller> caller = take_request(std::move(socket));
    if (!caller || !caller->medium) continue;  // not a probe
    Bootstrap bootstrap;
    bootstrap.control = std::move(caller->socket);
    bootstrap.server = true;
    bootstrap.accept_stream = [&](int) -> Result<Socket> {
      RCUDA_ASSIGN_OR_RETURN(UniqueFd accepted, accept_socket(listener.get()));
      RCUDA_ASSIGN_OR_RETURN(Caller stream, take_request(std::move(accepted)));
      return Socket(std::move(stream.socket));
    };
    Result<std::unique_ptr<Link>> link = make(*caller->medium, std::move(bootstrap));
    const Status status = link ? serve_link(**link) : link.status();
    std::fprintf(stderr, "rcuda-doctor: probe over %s: %s\n", caller->medium->name(),
                 status.message().c_str());
  }
}

Findings probe(const std::string& host, uint16_t port) {
  Findings findings;
  for (const Medium& medium : transport::media()) {
    if (medium.traits.reach != transport::Reach::kNetwork) continue;
    findings.push_back(probe_medium(host, port, medium));
    if (findings.back().verdict == Verdict::kBad) break;
  }
  return findings;
}

}  // namespace rcuda::doctor
