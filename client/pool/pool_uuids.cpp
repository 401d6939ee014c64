#include "client/pool/pool_uuids.h"

#include <algorithm>

#include "common/messages/gpu_report.h"
#include "common/reach/ask.h"

namespace rcuda::client {

Result<std::vector<std::string>> uuids_of(const std::vector<DeviceAddress>& pool) {
  RCUDA_ASSIGN_OR_RETURN(std::vector<ServerDevices> servers, group_by_server(pool));
  std::vector<std::string> uuids(pool.size());
  for (const ServerDevices& server : servers) {
    RCUDA_ASSIGN_OR_RETURN(const auto body,
                           wire::ask(server.host, server.port, wire::MessageType::kGpuQuery, {},
                                     wire::MessageType::kGpuReport));
    RCUDA_ASSIGN_OR_RETURN(const wire::GpuReport report, wire::decode<wire::GpuReport>(body));
    for (size_t i = 0; i < server.gpus.size(); ++i) {
      const auto found = std::find_if(report.gpus.begin(), report.gpus.end(), [&](const auto& gpu) {
        return gpu.ordinal == server.gpus[i];
      });
      if (found == report.gpus.end()) {
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
