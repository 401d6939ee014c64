#include "server/daemon/ops/gpu_reports.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/nvml/figures.h"
#include "p2p/link/host_identity.h"

namespace rcuda::server {
namespace {

// Joins the figures of NVML with the worker's data of the same device.
wire::GpuReport::Gpu gpu_of(const WorkerReady& offer, size_t index, const GpuSample* sample) {
  wire::GpuReport::Gpu gpu;
  if (sample && sample->gpus[index].known) gpu = sample->gpus[index].told;
  const wire::ServerStatus::Device& device = offer.devices[index];
  gpu.ordinal = device.ordinal;
  gpu.name = device.name;
  if (gpu.total_bytes == 0) gpu.total_bytes = device.total_bytes;
  gpu.uuid = offer.identities[index].uuid;
  gpu.pci_bus_id = offer.identities[index].pci_bus_id;
  return gpu;
}

// Adds the viewer's quota, if it is below the GPU's memory. Hides the GPU's total use from a viewer
// with such a quota, unless the viewer sees all sessions.
void add_quota(wire::GpuReport::Gpu* gpu, const std::optional<Admission::Room>& room,
               bool sees_all) {
  if (!room || room->limit >= gpu->total_bytes) return;
  gpu->quota_bytes = room->limit;
  gpu->quota_used_bytes = room->limit - room->free;
  if (sees_all) return;
  gpu->used_bytes = wire::kUnknownFigure;
  gpu->reserved_bytes = 0;
}

}  // namespace

std::optional<wire::GpuReport> report_gpus(const WorkerPool& pool, GpuMonitor& monitor,
                                           const Admission& admission, const Viewer& viewer,
                                           GpuMonitor::Clock::time_point asked_at, bool late) {
  const WorkerReady& offer = pool.offer();
  // The first worker finds out which devices there are.
  const bool knows = !offer.devices.empty() || (pool.starting() == 0 && !pool.finding_out());
  if (!knows && !late) return std::nullopt;
  std::vector<GpuName> names;
  for (const WorkerReady::Identity& identity : offer.identities) {
    names.push_back({identity.pci_bus_id, identity.uuid});
  }
  std::shared_ptr<const GpuSample> sample;
  const bool read = monitor.find(offer.driver_path, names, asked_at, &sample);
  if (!read && !late) return std::nullopt;

  wire::GpuReport report;
  if (sample) report.driver_version = sample->driver_version;
  report.cuda_version = offer.driver_version;
  report.layout = nvml::layout();
  report.host = p2p::host_identity();
  for (size_t i = 0; i < offer.devices.size(); ++i) {
    wire::GpuReport::Gpu gpu = gpu_of(offer, i, sample.get());
    std::optional<Admission::Room> room = pool.report(
        &gpu, sample ? sample->gpus[i].memory_of : std::map<uint32_t, uint64_t>(), viewer);
    if (!room) room = admission.device_room(viewer.user, gpu.ordinal);
    add_quota(&gpu, room, viewer.sees_all);
    report.gpus.push_back(std::move(gpu));
  }
  return report;
}

}  // namespace rcuda::server
