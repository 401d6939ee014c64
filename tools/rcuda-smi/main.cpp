// rcuda-smi: the devices and sessions of rcuda servers.
//
//   rcuda-smi                     this machine's server
//   rcuda-smi node1 node2:9000    other servers

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/connect.h"
#include "common/wire/handshake.h"
#include "common/wire/identify.h"

namespace rcuda {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);

struct Server {
  std::string host;
  uint16_t port = wire::kDefaultPort;
  std::string text() const { return host + ":" + std::to_string(port); }
};

// Parses host[:port], or host[@port] as in RCUDA_DEVICES; an IPv6 address is in brackets.
Result<Server> parse_server(const std::string& text) {
  Server server;
  const size_t host_end = text.find(']') == std::string::npos ? 0 : text.find(']');
  const size_t mark = text.find_first_of(":@", host_end);
  server.host = text.substr(0, mark);
  if (server.host.size() > 2 && server.host.front() == '[') {
    server.host = server.host.substr(1, server.host.size() - 2);
  }
  if (mark == std::string::npos) return server;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + mark + 1, end, server.port);
  if (error == std::errc() && rest == end && server.port != 0 && !server.host.empty()) {
    return server;
  }
  return Status(
      Code::kInvalidArgument,
      "\"" + text + "\" is not a server: write host or host:port, [address]:port for IPv6");
}

Result<wire::ServerStatus> ask(const Server& server) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  Result<UniqueFd> socket = wire::connect_tcp(server.host, server.port, deadline);
  if (!socket.ok()) return socket.status();
  wire::Connection connection;
  connection.socket = std::move(socket).value();
  wire::Credentials credentials;
  RCUDA_RETURN_IF_ERROR(credentials.registry.load_environment());
  RCUDA_RETURN_IF_ERROR(wire::identify(&connection, server.host, server.port, credentials, deadline)
                            .with_context(server.text()));
  RCUDA_RETURN_IF_ERROR(
      wire::write_message(connection.socket, wire::MessageType::kStatusQuery, {}, deadline));
  auto answer = wire::read_message(connection.socket, deadline);
  if (!answer.ok()) return Status(answer.status()).with_context(server.text());
  if (answer->first == wire::MessageType::kRefusal) {
    Result<wire::Refusal> refusal = wire::decode_refusal(answer->second);
    if (!refusal.ok()) return refusal.status();
    return Status(Code::kUnavailable, server.text() + ": " + refusal->reason);
  }
  return wire::decode_status(answer->second);
}

// Names come from clients: characters that could control a terminal are replaced.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text;
}

void print(const std::string& address, const wire::ServerStatus& status) {
  const std::string waiting =
      status.waiting == 0 ? "" : std::to_string(status.waiting) + " waiting, ";
  std::printf("%s (%s): %zu of %u sessions, %s%u idle worker%s; %s\n", address.c_str(),
              printable(status.server).c_str(), status.sessions.size(), status.max_sessions,
              waiting.c_str(), status.idle_workers, status.idle_workers == 1 ? "" : "s",
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
                session.client_pid, printable(session.medium).c_str(),
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
  for (const std::string& text : servers) {
    const Result<Server> server = parse_server(text);
    const Result<wire::ServerStatus> status =
        server.ok() ? ask(*server) : Result<wire::ServerStatus>(server.status());
    if (status.ok()) {
      print(server->text(), *status);
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
