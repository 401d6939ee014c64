#include "server/monitor/gpu_monitor.h"

#include <utility>

#include "common/base/log.h"
#include "common/nvml/nvml_api.h"
#include "common/transport/verbs/pci_distance.h"

namespace rcuda::server {
namespace {

// Converts a PCI distance to NVML's level of the path between two GPUs at that distance.
uint32_t ancestor_of(const transport::PciDistance& distance) {
  using Level = transport::PciDistance::Level;
  constexpr size_t kPortsOfOneSwitch = 2;
  switch (distance.level) {
    case Level::kSameSwitch:
      return distance.bridges <= kPortsOfOneSwitch ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_MULTIPLE;
    case Level::kSameRootComplex:
      return NVML_TOPOLOGY_HOSTBRIDGE;
    case Level::kSameNumaNode:
      return NVML_TOPOLOGY_NODE;
    default:
      return NVML_TOPOLOGY_SYSTEM;
  }
}

}  // namespace

void find_adapters(const std::filesystem::path& root, const std::vector<GpuName>& gpus,
                   GpuSample* sample) {
  for (size_t i = 0; i < gpus.size(); ++i) {
    const auto near = transport::adapter_near(root, gpus[i].pci_bus_id);
    if (!near) continue;
    sample->gpus[i].told.adapter = near->name;
    sample->gpus[i].told.adapter_ancestor = ancestor_of(near->distance);
  }
}

GpuMonitor::Read GpuMonitor::from_nvml() {
  struct Nvml {
    bool tried = false;
    std::unique_ptr<NvmlReader> reader;
  };
  return [nvml = std::make_shared<Nvml>()](
             const std::string& driver_path,
             const std::vector<GpuName>& gpus) -> std::unique_ptr<GpuSample> {
    if (!std::exchange(nvml->tried, true)) {
      auto reader = NvmlReader::open(driver_path);
      if (reader.ok()) {
        nvml->reader = std::move(reader).value();
      } else {
        RCUDA_INFO("the server cannot report the utilisation and temperature of its GPUs: %s",
                   reader.status().message().c_str());
      }
    }
    if (!nvml->reader) return nullptr;
    auto sample = std::make_unique<GpuSample>(nvml->reader->read(gpus));
    find_adapters("/", gpus, sample.get());
    return sample;
  };
}

bool GpuMonitor::find(const std::string& driver_path, const std::vector<GpuName>& gpus,
                      Clock::time_point asked, std::shared_ptr<const GpuSample>* sample) {
  if (std::optional<Reading> reading = readings_.take(Key::kAll)) latest_ = std::move(reading);
  if (latest_ && latest_->begun + kFresh >= asked && latest_->gpus == gpus) {
    *sample = latest_->sample;
    return true;
  }
  if (readings_.is_asked(Key::kAll)) return false;
  const Status begun = readings_.ask(Key::kAll, [read = read_, driver_path, gpus] {
    const Clock::time_point now = Clock::now();
    return Reading{read(driver_path, gpus), gpus, now};
  });
  if (begun.ok()) return false;
  sample->reset();  // no sample, as without NVML
  return true;
}

}  // namespace rcuda::server
