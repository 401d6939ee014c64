#include "tools/rcuda-doctor/probe.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/socket_io.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/wire/connect.h"

namespace rcuda::doctor {
namespace {

using transport::Bootstrap;
using transport::Link;
using transport::LinkOptions;
using Clock = std::chrono::steady_clock;

constexpr size_t kBlockBytes = 64u << 20;
constexpr auto kPatience = std::chrono::seconds(20);
constexpr uint64_t kMagic = 0x31726f7463646372;  // "rcdctor1"

// The first thing on a connection: what it is for.
struct Request {
  uint64_t magic = kMagic;
  uint32_t kind = 0;
  uint32_t reserved = 0;
};
enum Kind : uint32_t { kTcp = 1, kVerbs = 2, kStream = 3 };

constexpr char kMend[] =
    "run rcuda-doctor on both hosts and mend what it finds; then docs/rdma.md, \"How it fails\"";

struct AddressList {
  explicit AddressList(addrinfo* list) : list(list) {}
  ~AddressList() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
  AddressList(const AddressList&) = delete;
  addrinfo* list;
};

Result<std::unique_ptr<AddressList>> resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                  std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return Status{Code::kNotFound, host + ": " + ::gai_strerror(error)};
  return std::make_unique<AddressList>(list);
}

Result<UniqueFd> connect_to(const std::string& host, uint16_t port) {
  auto addresses = resolve(host, port, 0);
  if (!addresses) return addresses.status();
  Status last{Code::kUnavailable, host + " has no address"};
  for (addrinfo* at = (*addresses)->list; at != nullptr; at = at->ai_next) {
    UniqueFd socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return socket;
    last = Status::from_errno(errno, "connecting to " + host + ":" + std::to_string(port));
  }
  return last;
}

// Says on a new connection what it is for.
Result<UniqueFd> request(Result<UniqueFd> socket, Kind kind) {
  if (!socket) return socket;
  const Request request{kMagic, kind, 0};
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
  Result<transport::Region> region = link.expose(block.data(), block.size());
  if (!region) return region.status();
  const auto id = static_cast<uint64_t>(region->id);
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
    return {Code::kProtocol, "what came back is not what was sent"};
  }
  char text[100];
  std::snprintf(text, sizeof text, "64 MiB there at %.2f GB/s and back at %.2f GB/s, verified",
                written, read);
  *figures = text;
  return {};
}

Result<std::unique_ptr<Link>> make(Kind kind, Bootstrap bootstrap) {
  bootstrap.timeout = kPatience;
  const LinkOptions options{.window_bytes = 1u << 20};
  return kind == kVerbs ? transport::make_verbs_link(std::move(bootstrap), options)
                        : transport::make_tcp_link(std::move(bootstrap), options);
}

Result<std::pair<UniqueFd, Kind>> accept_request(int listener) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return Status::from_errno(errno, "accept");
  Request request;
  RCUDA_RETURN_IF_ERROR(
      recv_all(socket.get(), writable_bytes_of(request), Clock::now() + kPatience));
  if (request.magic != kMagic || request.kind < kTcp || request.kind > kStream) {
    return Status{Code::kProtocol, "not a probe"};
  }
  return std::pair(std::move(socket), static_cast<Kind>(request.kind));
}

Finding probe_medium(const std::string& host, uint16_t port, Kind kind, const char* name) {
  const std::string what = std::string("probe of ") + host + " over " + name + ": ";
  Result<UniqueFd> control = request(connect_to(host, port), kind);
  if (!control) {
    return {Verdict::kBad, what + control.status().message(),
            "run 'rcuda-doctor --listen' there, and open port " + std::to_string(port)};
  }
  if (kind == kVerbs) {
    if (const Status usable = transport::verbs_usable(control->get()); !usable.ok()) {
      return {Verdict::kNote, what + usable.context(),
              "name the server by its address on the RDMA network"};
    }
  }
  Bootstrap bootstrap;
  bootstrap.control = std::move(*control);
  bootstrap.open_stream = [socket = bootstrap.control.get()](int) {
    return request(wire::connect_again(socket, Clock::now() + kPatience), kStream);
  };
  Result<std::unique_ptr<Link>> link = make(kind, std::move(bootstrap));
  if (!link) return {Verdict::kBad, what + link.status().message(), kMend};
  std::string figures;
  if (const Status status = measure(**link, &figures); !status.ok()) {
    return {Verdict::kBad, what + status.message(), kMend};
  }
  return {Verdict::kGood, what + figures, ""};
}

}  // namespace

Status serve_probes(const std::string& address, uint16_t port) {
  auto addresses = resolve(address, port, AI_PASSIVE);
  if (!addresses) return addresses.status();
  const addrinfo& local = *(*addresses)->list;
  const UniqueFd listener(::socket(local.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener || ::bind(listener.get(), local.ai_addr, local.ai_addrlen) != 0 ||
      ::listen(listener.get(), 16) != 0) {
    return Status::from_errno(errno, "listening on port " + std::to_string(port));
  }
  std::fprintf(stderr, "rcuda-doctor: waiting for probes on port %d\n", port);
  while (true) {
    Result<std::pair<UniqueFd, Kind>> request = accept_request(listener.get());
    if (!request) {
      if (request.status().code() == Code::kSystem) return request.status();
      continue;  // somebody else's connection
    }
    Bootstrap bootstrap;
    bootstrap.control = std::move(request->first);
    bootstrap.server = true;
    bootstrap.accept_stream = [&](int) -> Result<UniqueFd> {
      Result<std::pair<UniqueFd, Kind>> stream = accept_request(listener.get());
      if (!stream) return stream.status();
      return std::move(stream->first);
    };
    Result<std::unique_ptr<Link>> link = make(request->second, std::move(bootstrap));
    const Status status = link ? serve_link(**link) : link.status();
    std::fprintf(stderr, "rcuda-doctor: probe over %s: %s\n",
                 request->second == kVerbs ? "verbs" : "tcp", status.message().c_str());
  }
}

Findings probe(const std::string& host, uint16_t port) {
  Findings findings;
  findings.push_back(probe_medium(host, port, kTcp, "tcp"));
  if (findings.back().verdict != Verdict::kBad) {
    findings.push_back(probe_medium(host, port, kVerbs, "verbs"));
  }
  return findings;
}

}  // namespace rcuda::doctor
