#include "p2p/link/environment.h"

#include "common/base/log.h"

namespace rcuda::p2p {
namespace {

// Large enough to measure the bandwidth of a copy from mapped memory (Prober::kLargestBytes).
constexpr size_t kProbeBytes = size_t{16} << 20;

}  // namespace

const std::optional<ExportedMemory>& Environment::probe_memory(int device) {
  probes_.resize(devices.size());
  if (!options.planner.may_map()) return probes_[static_cast<size_t>(device)].exported;
  Probe& probe = probes_[static_cast<size_t>(device)];
  if (probe.tried) return probe.exported;
  probe.tried = true;
  Result<DeviceBuffer> buffer = DeviceBuffer::create(ops, device, kProbeBytes);
  if (!buffer) return probe.exported;
  probe.buffer = *std::move(buffer);
  Result<ExportedMemory> exported = ops.export_memory(device, probe.buffer.address());
  if (exported) {
    probe.exported = *exported;
  } else {
    RCUDA_DEBUG("memory of device %d cannot be exported: %s", device,
                exported.status().message().c_str());
    probe.buffer = DeviceBuffer();
  }
  return probe.exported;
}

DeviceAddress Environment::existing_scratch(int device) const {
  const auto index = static_cast<size_t>(device);
  if (index < probes_.size() && probes_[index].exported) return probes_[index].buffer.address();
  return index < scratch_.size() ? scratch_[index].address() : 0;
}

Result<DeviceAddress> Environment::scratch(int device) {
  if (const DeviceAddress existing = existing_scratch(device)) return existing;
  Result<DeviceBuffer> made = DeviceBuffer::create(ops, device, kProbeBytes);
  if (!made) return made.status();
  scratch_.resize(devices.size());
  scratch_[static_cast<size_t>(device)] = *std::move(made);
  return scratch_[static_cast<size_t>(device)].address();
}

}  // namespace rcuda::p2p
