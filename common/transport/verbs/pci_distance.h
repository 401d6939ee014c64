// How far two PCI devices are from each other, from sysfs: which adapter to use for which GPU.
//
// `root` is "/" in real life and a made-up tree in tests. Pure functions of the files; nothing
// blocks but reading them. A device that sysfs does not know has no distance. Used by the verbs
// plug-in and by rcuda-doctor.
#pragma once

#include <compare>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rcuda::transport {

struct PciDevice {
  std::string address;         // "0000:3b:00.0"
  std::filesystem::path path;  // the real one, through all bridges
  int numa_node = -1;
};

bool is_pci_address(const std::string& name);
// The device that a link of sysfs leads to.
std::optional<PciDevice> pci_device(const std::filesystem::path& link);
// The device at an address as CUDA writes it ("0000:3B:00.0").
std::optional<PciDevice> pci_device_at(const std::filesystem::path& root, std::string address);

// The bridges that two devices share, from the root downwards, and those that only one of them has.
struct PciRoute {
  std::vector<std::filesystem::path> shared;
  std::vector<std::filesystem::path> apart;
  bool same_root = false;  // root complex
};
PciRoute pci_route(const PciDevice& a, const PciDevice& b);

// Smaller is nearer.
struct PciDistance {
  enum class Level { kSameSwitch, kSameRootComplex, kSameNumaNode, kFar };
  Level level = Level::kFar;
  size_t bridges = 0;  // between the two, below what they share
  auto operator<=>(const PciDistance&) const = default;
};
PciDistance pci_distance(const PciDevice& a, const PciDevice& b);
const char* describe(PciDistance::Level level);  // "behind the same PCIe switch"

// Which of several adapters, named as in /sys/class/infiniband, is nearest to the GPU at a PCI
// address: an index. Of equals the first wins, so callers list the one they would take anyway
// first; adapters and GPUs that sysfs does not place win nothing. `why` says in a few words what
// decided, and is left alone when nothing did.
size_t nearest_adapter(const std::filesystem::path& root, const std::string& gpu,
                       const std::vector<std::string>& adapters, std::string* why);

}  // namespace rcuda::transport
