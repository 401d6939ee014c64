#include "client/pool/pool_uuids.h"

#include <algorithm>

#include "common/messages/gpu_report.h"
#include "common/reach/ask.h"

namespace rcuda::client {

Result<std::vector<std::string>> uuids_of(const std::vector<DeviceAddress>& pool) {
  Result<std::vector<ServerDevices>> servers = group_by_server(pool);
  if (!servers) return servers.status();
  std::vector<std::string> uuids(pool.size());
  for (const ServerDevices& server : *servers) {
    const auto body = wire::ask(server.host, server.port, wire::MessageType::kGpuQuery, {},
                                wire::MessageType::kGpuReport);
    if (!body.ok()) return body.status();
    const Result<wire::GpuReport> report = wire::decode<wire::GpuReport>(*body);
    if (!report) return report.status();
    for (size_t i = 0; i < server.gpus.size(); ++i) {
      const auto found =
          std::find_if(report->gpus.begin(), report->gpus.end(),
                       [&](const auto& gpu) { return gpu.ordinal == server.gpus[i]; });
      if (found == report->gpus.end()) {
        return Status(Code::kNotFound,
                      device_text(pool[server.ordinals[i]]) +
                          ": the server has no such GPU; rcuda-smi lists its GPUs");
      }
      uuids[server.ordinals[i]] = found->uuid;
    }
  }
  return uuids;
}

}  // namespace rcuda::client
