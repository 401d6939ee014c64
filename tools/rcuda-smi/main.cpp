// rcuda-smi: the devices and sessions of rcuda servers.
//
//   rcuda-smi                     the server of this machine
//   rcuda-smi node1 node2:9000    others

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"

namespace rcuda {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);

Result<UniqueFd> connect_to(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Status(Code::kUnavailable,
                  "cannot resolve \"" + host + "\" (" + ::gai_strerror(error) + ")");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  int error = EHOSTUNREACH;
  for (const addrinfo* address = found; address; address = address->ai_next) {
    UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    // The send timeout bounds connect() as well.
    const timeval patience{kPatience.count(), 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0) return socket;
    error = errno;
  }
  return Status(Code::kUnavailable, "cannot connect to " + host + ":" + port + " (" +
                                        std::strerror(error) + "): is rcuda-server running there?");
}

Result<wire::ServerStatus> ask(const std::string& host, const std::string& port) {
  Result<UniqueFd> socket = connect_to(host, port);
  if (!socket.ok()) return socket.status();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  RCUDA_RETURN_IF_ERROR(
      wire::write_message(socket->get(), wire::MessageType::kStatusQuery, {}, deadline));
  auto answer = wire::read_message(socket->get(), deadline);
  if (!answer.ok()) return Status(answer.status()).with_context(host + ":" + port);
  if (answer->first == wire::MessageType::kRefusal) {
    Result<wire::Refusal> refusal = wire::decode_refusal(answer->second);
    if (!refusal.ok()) return refusal.status();
    return Status(Code::kUnavailable, host + ":" + port + ": " + refusal->reason);
  }
  return wire::decode_status(answer->second);
}

const char* name_of(wire::Medium medium) {
  switch (medium) {
    case wire::Medium::kShm:
      return "shm";
    case wire::Medium::kTcp:
      return "tcp";
    case wire::Medium::kVerbs:
      return "verbs";
    default:
      return "?";
  }
}

// Names come from clients: what could steer a terminal is not passed on.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text;
}

void print(const std::string& address, const wire::ServerStatus& status) {
  std::printf("%s (%s): %zu of %u sessions, %u idle worker%s; %s\n", address.c_str(),
              printable(status.server).c_str(), status.sessions.size(), status.max_sessions,
              status.idle_workers, status.idle_workers == 1 ? "" : "s",
              printable(status.driver).c_str());
  for (const wire::ServerStatus::Device& device : status.devices) {
    const auto users =
        std::count_if(status.sessions.begin(), status.sessions.end(), [&](const auto& session) {
          return std::count(session.devices.begin(), session.devices.end(), device.ordinal) > 0;
        });
    std::printf("  device %-3u %-32s %6.1f GiB  %ld session%s\n", device.ordinal,
                printable(device.name).c_str(),
                static_cast<double>(device.total_bytes) / (1ull << 30), static_cast<long>(users),
                users == 1 ? "" : "s");
  }
  for (const wire::ServerStatus::Session& session : status.sessions) {
    std::string devices;
    for (uint32_t ordinal : session.devices) {
      devices += (devices.empty() ? "" : ",") + std::to_string(ordinal);
    }
    std::printf("  session %-8s %s on %s, pid %u, over %s, %llu s, worker %u: %s\n",
                devices.c_str(), printable(session.user).c_str(), printable(session.host).c_str(),
                session.client_pid, name_of(session.medium),
                static_cast<unsigned long long>(session.seconds), session.worker_pid,
                printable(session.program).c_str());
  }
}

int start(int argc, char** argv) {
  CLI::App app("Shows the devices and sessions of rcuda servers.", "rcuda-smi");
  std::vector<std::string> servers = {"localhost"};
  app.add_option("server", servers, "host or host:port, 8308 unless given")->type_name("");
  CLI11_PARSE(app, argc, argv);
  int failed = 0;
  for (const std::string& server : servers) {
    // host:port, with the form host@port of RCUDA_DEVICES as well.
    const size_t mark = server.find_last_of(":@");
    const std::string host = server.substr(0, mark);
    const std::string port =
        mark == std::string::npos ? std::to_string(wire::kDefaultPort) : server.substr(mark + 1);
    Result<wire::ServerStatus> status = ask(host, port);
    if (status.ok()) {
      print(host + ":" + port, *status);
    } else {
      std::fprintf(stderr, "rcuda-smi: %s\n", status.status().context().c_str());
      failed = 1;
    }
  }
  return failed;
}

}  // namespace
}  // namespace rcuda

int main(int argc, char** argv) { return rcuda::start(argc, argv); }
