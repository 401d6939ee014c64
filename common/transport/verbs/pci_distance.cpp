#include "common/transport/verbs/pci_distance.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "common/base/file_io.h"
#include "common/base/lower.h"

namespace rcuda::transport {

namespace fs = std::filesystem;

bool is_pci_address(const std::string& name) {
  return name.size() >= 12 && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

std::optional<PciDevice> pci_device(const fs::path& link) {
  std::error_code error;
  const fs::path path = fs::canonical(link, error);
  if (error) return std::nullopt;
  const std::string node = read_line(path / "numa_node");
  return PciDevice{path.filename().string(), path, node.empty() ? -1 : std::atoi(node.c_str())};
}

std::optional<PciDevice> pci_device_at(const fs::path& root, std::string address) {
  address = lower(address);
  // CUDA and nvidia-smi write eight-digit domains on some machines.
  if (address.size() == 16 && address.rfind("0000", 0) == 0) address.erase(0, 4);
  if (!is_pci_address(address)) return std::nullopt;
  return pci_device(root / "sys/bus/pci/devices" / address);
}

PciRoute pci_route(const PciDevice& a, const PciDevice& b) {
  PciRoute route;
  auto left = a.path.begin();
  auto right = b.path.begin();
  fs::path prefix;
  while (left != a.path.end() && right != b.path.end() && *left == *right) {
    prefix /= *left;
    const std::string name = left->string();
    if (name.rfind("pci", 0) == 0 && name.find(':') != std::string::npos) route.same_root = true;
    if (is_pci_address(name)) route.shared.push_back(prefix);
    ++left;
    ++right;
  }
  for (const auto& [device, from] : {std::pair(&a, left), std::pair(&b, right)}) {
    fs::path path = prefix;
    for (auto at = from; at != device->path.end(); ++at) {
      path /= *at;
      if (std::next(at) != device->path.end() && is_pci_address(at->string())) {
        route.apart.push_back(path);
      }
    }
  }
  return route;
}

PciDistance pci_distance(const PciDevice& a, const PciDevice& b) {
  using Level = PciDistance::Level;
  const PciRoute route = pci_route(a, b);
  const bool same_node = a.numa_node >= 0 && a.numa_node == b.numa_node;
  // If only one bridge is shared, it is the root port; bridges below it belong to a switch.
  const Level level = route.shared.size() > 1 ? Level::kSameSwitch
                      : route.same_root       ? Level::kSameRootComplex
                      : same_node             ? Level::kSameNumaNode
                                              : Level::kFar;
  return {level, route.apart.size()};
}

const char* describe(PciDistance::Level level) {
  switch (level) {
    case PciDistance::Level::kSameSwitch:
      return "behind the same PCIe switch";
    case PciDistance::Level::kSameRootComplex:
      return "under the same root complex";
    case PciDistance::Level::kSameNumaNode:
      return "on the same NUMA node";
    default:
      return "on different NUMA nodes";
  }
}

namespace {

std::optional<PciDistance> adapter_distance(const fs::path& root, const PciDevice& gpu,
                                            const std::string& adapter) {
  const auto device = pci_device(root / "sys/class/infiniband" / adapter / "device");
  if (!device || !is_pci_address(device->address)) return std::nullopt;
  return pci_distance(gpu, *device);
}

}  // namespace

std::optional<NearAdapter> adapter_near(const fs::path& root, const std::string& gpu) {
  const std::optional<PciDevice> target = pci_device_at(root, gpu);
  if (!target) return std::nullopt;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/class/infiniband", error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::optional<NearAdapter> nearest;
  for (const std::string& name : names) {
    const auto distance = adapter_distance(root, *target, name);
    if (distance && (!nearest || *distance < nearest->distance)) nearest = {name, *distance};
  }
  return nearest;
}

size_t nearest_adapter(const fs::path& root, const std::string& gpu,
                       const std::vector<std::string>& adapters, std::string* why) {
  const std::optional<PciDevice> target = pci_device_at(root, gpu);
  if (!target || adapters.size() < 2) return 0;
  size_t best = 0;
  std::optional<PciDistance> least;
  bool differ = false;
  for (size_t i = 0; i < adapters.size(); ++i) {
    const auto distance = adapter_distance(root, *target, adapters[i]);
    if (!distance) continue;
    differ = differ || (least && *distance != *least);
    if (least && *distance >= *least) continue;
    least = distance;
    best = i;
  }
  if (differ || best != 0) {
    *why = "it is the nearest of " + std::to_string(adapters.size()) + " adapters to GPU " +
           target->address + ", " + describe(least->level);
  }
  return least ? best : 0;
}

}  // namespace rcuda::transport
