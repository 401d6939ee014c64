#include "tools/base/server_query.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>

#include "client/pool/device_list.h"
#include "common/base/host_port.h"
#include "common/nvml/figures.h"

namespace rcuda::tools {

Result<Server> parse_server(const std::string& text) {
  Server server;
  if (parse_host_port(text, ":@", &server.host, &server.port)) return server;
  return Status(
      Code::kInvalidArgument,
      "\"" + text + "\" is not a server: write host or host:port, [address]:port for IPv6");
}

Result<std::vector<Server>> choose_servers(const std::vector<std::string>& names) {
  std::vector<Server> servers;
  const auto add = [&](Server server) {
    const bool known = std::any_of(servers.begin(), servers.end(), [&](const Server& other) {
      return other.text() == server.text();
    });
    if (!known) servers.push_back(std::move(server));
  };
  for (const std::string& name : names) {
    RCUDA_ASSIGN_OR_RETURN(Server server, parse_server(name));
    add(std::move(server));
  }
  if (!servers.empty()) return servers;
  const auto pool = client::devices_from([](const char* name) { return std::getenv(name); });
  if (pool.status().code() == Code::kNotFound) return std::vector<Server>{{"localhost"}};
  if (!pool.ok()) return pool.status();
  for (const client::DeviceAddress& device : *pool) add({device.host, device.port});
  return servers;
}

std::vector<Told> ask_all(const std::vector<Server>& servers) {
  std::vector<std::future<Told>> asked;
  for (const Server& server : servers) {
    asked.push_back(std::async(std::launch::async, [&server]() -> Told {
      auto status = ask<wire::ServerStatus>(server, wire::MessageType::kStatusQuery, {},
                                            wire::MessageType::kStatus);
      if (!status.ok()) return {status.status(), status.status()};
      return {std::move(status), ask<wire::GpuReport>(server, wire::MessageType::kGpuQuery, {},
                                                      wire::MessageType::kGpuReport)};
    }));
  }
  std::vector<Told> reports;
  for (std::future<Told>& one : asked) reports.push_back(one.get());
  return reports;
}

const wire::ServerStatus::Session* session_of(const wire::ServerStatus& status,
                                              const wire::GpuReport::Gpu& gpu,
                                              const wire::GpuReport::Process& process) {
  const auto found =
      std::find_if(status.sessions.begin(), status.sessions.end(), [&](const auto& session) {
        return session.client_pid == process.pid && session.host == process.host &&
               std::count(session.devices.begin(), session.devices.end(), gpu.ordinal) > 0;
      });
  return found == status.sessions.end() ? nullptr : &*found;
}

wire::ServerStatus::Leased leases_of(const wire::ServerStatus& status, uint32_t ordinal) {
  const auto found =
      std::ranges::find(status.leased, ordinal, &wire::ServerStatus::Leased::ordinal);
  return found == status.leased.end() ? wire::ServerStatus::Leased() : *found;
}

std::optional<uint64_t> known(uint64_t figure) {
  return figure == wire::kUnknownFigure ? std::nullopt : std::optional(figure);
}

std::optional<uint64_t> figure_of(const wire::GpuReport& report, const wire::GpuReport::Gpu& gpu,
                                  size_t figure) {
  // A server of another build may have another list of figures.
  if (report.layout != nvml::layout() || figure >= gpu.figures.size()) return std::nullopt;
  return known(gpu.figures[figure]);
}

}  // namespace rcuda::tools
