// The distance between two PCI devices, according to sysfs. The distance decides which adapter a
// GPU uses.
//
// `root` is "/" in real use and a made-up tree in tests. The results depend only on its files.
// Nothing blocks, except the reading of these files. A device without an entry in sysfs has no
// distance. Used by the verbs plug-in, by p2p, by the daemon for its GPU report, and by
// rcuda-doctor.
#pragma once

#include <compare>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rcuda::transport {

struct PciDevice {
  std::string address;         // "0000:3b:00.0"
  std::filesystem::path path;  // with all links resolved, through all bridges
  int numa_node = -1;
};

bool is_pci_address(const std::string& name);
// Returns the device to which a link in sysfs points.
std::optional<PciDevice> pci_device(const std::filesystem::path& link);
// Returns the device at a PCI address, written as CUDA writes it ("0000:3B:00.0").
std::optional<PciDevice> pci_device_at(const std::filesystem::path& root, std::string address);

// The bridges above both devices, from the root downwards, and the bridges above only one of them.
struct PciRoute {
  std::vector<std::filesystem::path> shared;
  std::vector<std::filesystem::path> apart;
  bool same_root = false;  // same root complex
};
PciRoute pci_route(const PciDevice& a, const PciDevice& b);

// The distance between two devices. A smaller value is nearer.
struct PciDistance {
  enum class Level { kSameSwitch, kSameRootComplex, kSameNumaNode, kFar };
  Level level = Level::kFar;
  size_t bridges = 0;  // between the two devices, without the bridges that they share
  auto operator<=>(const PciDistance&) const = default;
};
PciDistance pci_distance(const PciDevice& a, const PciDevice& b);
const char* describe(PciDistance::Level level);  // "behind the same PCIe switch"

// Returns the index of the adapter that is nearest to the GPU at a PCI address. Adapters are named
// as in /sys/class/infiniband. Among equals the first wins, so callers list their default first.
// Skips adapters that have no entry in sysfs. Returns 0 if the GPU or all adapters have no entry.
// `why` receives the reason in a few words; it is unchanged if the distance did not decide.
size_t nearest_adapter(const std::filesystem::path& root, const std::string& gpu,
                       const std::vector<std::string>& adapters, std::string* why);

// The adapter of /sys/class/infiniband that is nearest to the GPU at a PCI address; among equals,
// the first by name. nullopt if the GPU, or every adapter, has no entry in sysfs.
struct NearAdapter {
  std::string name;
  PciDistance distance;
};
std::optional<NearAdapter> adapter_near(const std::filesystem::path& root, const std::string& gpu);

}  // namespace rcuda::transport
