#include "client/pool/pool_uuids.h"

#include <algorithm>

#include "client/pool/retries.h"
#include "common/cuda/visible_devices.h"
#include "common/messages/gpu_report.h"
#include "common/reach/ask.h"

namespace rcuda::client {
namespace {

using Clock = std::chrono::steady_clock;

Result<wire::GpuReport> gpus_of(const std::string& host, uint16_t port,
                                Clock::time_point deadline) {
  Retries retries(deadline);
  while (true) {
    const auto body =
        wire::ask(host, port, wire::MessageType::kGpuQuery, {}, wire::MessageType::kGpuReport);
    if (body.ok()) return wire::decode<wire::GpuReport>(*body);
    if (!retries.again(body.status())) return body.status();
  }
}

// Sets the number of a device from the report of its server.
Status resolve(const wire::GpuReport& report, DeviceAddress* device) {
  std::vector<std::string> uuids;
  for (const auto& gpu : report.gpus) uuids.push_back(gpu.uuid);
  std::string problem;
  const auto place = cuda::position_of_uuid(device->uuid, uuids, &problem);
  if (!place) {
    return Status(Code::kNotFound, device_text(*device) + ": on this server, " + problem +
                                       "; rcuda-smi --json lists its GPUs");
  }
  device->gpu = report.gpus[*place].ordinal;
  device->uuid.clear();
  return {};
}

}  // namespace

Result<std::vector<std::string>> uuids_of(const std::vector<DeviceAddress>& pool,
                                          Clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(std::vector<ServerDevices> servers, group_by_server(pool));
  std::vector<std::string> uuids(pool.size());
  for (const ServerDevices& server : servers) {
    RCUDA_ASSIGN_OR_RETURN(const wire::GpuReport report,
                           gpus_of(server.host, server.port, deadline));
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

Status resolve_uuids(std::vector<DeviceAddress>* pool, Clock::time_point deadline) {
  for (size_t i = 0; i < pool->size(); ++i) {
    if ((*pool)[i].uuid.empty()) continue;
    const std::string host = (*pool)[i].host;
    const uint16_t port = (*pool)[i].port;
    RCUDA_ASSIGN_OR_RETURN(const wire::GpuReport report, gpus_of(host, port, deadline));
    for (DeviceAddress& device : *pool) {
      if (device.uuid.empty() || device.host != host || device.port != port) continue;
      RCUDA_RETURN_IF_ERROR(resolve(report, &device).with_context("RCUDA_DEVICES"));
    }
  }
  return {};
}

}  // namespace rcuda::client
