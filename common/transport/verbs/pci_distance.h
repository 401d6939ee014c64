// How far apart two PCI devices are, according to sysfs: this decides which adapter serves which
// GPU.
//
// `root` is "/" in real use and a made-up tree in tests. The results depend on the files only, and
// nothing blocks except reading them. A device that sysfs does not know has no distance. Used by
// the verbs plug-in, by the daemon for what it reports of GPUs, and by rcuda-doctor.
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
// The device to which a link in sysfs points.
std::optional<PciDevice> pci_device(const std::filesystem::path& link);
// The device at a PCI address, written as CUDA writes it ("0000:3B:00.0").
std::optional<PciDevice> pci_device_at(const std::filesystem::path& root, std::string address);

// The bridges that two devices share, from the root downwards, and those that only one of them has.
struct PciRoute {
  std::vector<std::filesystem::path> shared;
  std::vector<std::filesystem::path> apart;
  bool same_root = false;  // same root complex
};
PciRoute pci_route(const PciDevice& a, const PciDevice& b);

// Smaller is nearer.
struct PciDistance {
  enum class Level { kSameSwitch, kSameRootComplex, kSameNumaNode, kFar };
  Level level = Level::kFar;
  size_t bridges = 0;  // between the two, below the bridges they share
  auto operator<=>(const PciDistance&) const = default;
};
PciDistance pci_distance(const PciDevice& a, const PciDevice& b);
const char* describe(PciDistance::Level level);  // "behind the same PCIe switch"

// Returns the index of the adapter that is nearest to the GPU at a PCI address. Adapters are named
// as in /sys/class/infiniband. Among equals the first wins, so callers list their default first.
// Adapters and GPUs that sysfs cannot place never win. `why` says in a few words what decided; it
// is left unchanged if the distance did not decide.
size_t nearest_adapter(const std::filesystem::path& root, const std::string& gpu,
                       const std::vector<std::string>& adapters, std::string* why);

// The adapter of /sys/class/infiniband that is nearest to the GPU at a PCI address; among equals,
// the first by name. Nothing if sysfs cannot place the GPU or any adapter.
struct NearAdapter {
  std::string name;
  PciDistance distance;
};
std::optional<NearAdapter> adapter_near(const std::filesystem::path& root, const std::string& gpu);

}  // namespace rcuda::transport
