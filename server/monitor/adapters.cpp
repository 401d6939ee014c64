#include "server/monitor/adapters.h"

#include <optional>

#include "common/nvml/nvml_api.h"
#include "common/transport/verbs/pci_distance.h"

namespace rcuda::server {
namespace {

// As NVML words the ways between two GPUs.
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

}  // namespace rcuda::server
