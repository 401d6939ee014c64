#include "tools/base/server_query.h"

#include <algorithm>
#include <future>
#include <utility>

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
