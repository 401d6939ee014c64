// rcuda-smi: the devices and sessions of rcuda servers.
//
//   rcuda-smi                     this machine's server
//   rcuda-smi node1 node2:9000    other servers

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/wire/handshake.h"
#include "tools/base/server_query.h"

namespace rcuda {
namespace {

using tools::printable;
using tools::Server;

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
    std::printf("  session %-8s %s on %s, pid %u, over %s, %llu s, worker %u: %s%s\n",
                devices.c_str(), printable(session.user).c_str(), printable(session.host).c_str(),
                session.client_pid, printable(session.medium).c_str(),
                static_cast<unsigned long long>(session.seconds), session.worker_pid,
                printable(session.program).c_str(),
                session.job.empty() ? "" : (", job " + printable(session.job)).c_str());
  }
}

int start(int argc, char** argv) {
  CLI::App app("Shows the devices and sessions of rcuda servers.", "rcuda-smi");
  std::vector<std::string> servers = {"localhost"};
  app.add_option("server", servers, "host or host:port, 8308 unless given")->type_name("");
  CLI11_PARSE(app, argc, argv);
  int failed = 0;
  for (const std::string& text : servers) {
    const Result<Server> server = tools::parse_server(text);
    const Result<wire::ServerStatus> status =
        server.ok() ? tools::status_of(*server) : Result<wire::ServerStatus>(server.status());
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
