#include "tools/rcuda-doctor/checks.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "common/base/file_io.h"
#include "common/base/units.h"
#include "common/transport/verbs/pci_distance.h"

namespace rcuda::doctor {
namespace {

namespace fs = std::filesystem;
using transport::PciDevice;
using transport::PciDistance;
using transport::PciRoute;

std::vector<fs::path> children(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Returns the IPv4 address in a GID: 10.77.0.1 for "0000:0000:0000:0000:0000:ffff:0a4d:0001". Empty
// if the GID contains no IPv4 address.
std::string ipv4_of(const std::string& gid) {
  constexpr char kPrefix[] = "0000:0000:0000:0000:0000:ffff:";
  if (gid.rfind(kPrefix, 0) != 0 || gid.size() != 39) return {};
  const auto byte = [&](size_t at) {
    return std::to_string(std::strtoul(gid.substr(at, 2).c_str(), nullptr, 16));
  };
  return byte(30) + "." + byte(32) + "." + byte(35) + "." + byte(37);
}

void check_port(const fs::path& port, const std::string& name, Findings& findings) {
  const std::string state = read_line(port / "state");
  const std::string layer = read_line(port / "link_layer");
  const std::string rate = read_line(port / "rate");
  if (state.find("ACTIVE") != std::string::npos) {
    findings.push_back({Verdict::kGood, name + " is active, " + layer + ", " + rate, ""});
    return;
  }
  const bool initialising = state.find("INIT") != std::string::npos;
  findings.push_back(
      {Verdict::kWarning, name + " is " + (state.empty() ? "unreadable" : state) + ", " + layer,
       initialising ? "start a subnet manager (opensm), on this network or its switch"
       : layer == "Ethernet"
           ? "bring its interface up: ip link set DEV up, and check cable and switch"
           : "check cable and switch port"});
}

void check_mtu(const fs::path& root, const std::string& interface, std::set<std::string>& seen,
               Findings& findings) {
  if (interface.empty() || !seen.insert(interface).second) return;
  const int mtu = std::atoi(read_line(root / "sys/class/net" / interface / "mtu").c_str());
  const std::string what = "MTU of " + interface + " is " + std::to_string(mtu);
  constexpr int kHeaders = 96;  // bytes of RoCE's headers, as Linux counts them
  int payload = 4096;           // the largest MTU of RDMA; each smaller MTU is half of the next
  while (payload > 256 && payload + kHeaders > mtu) payload /= 2;
  if (payload == 4096) {
    findings.push_back({Verdict::kGood, what, ""});
  } else {
    findings.push_back({Verdict::kWarning,
                        what + ": RDMA packets carry at most " + std::to_string(payload) + " bytes",
                        "ip link set " + interface + " mtu 9000, and the same on the switch"});
  }
}

std::vector<PciDevice> gpus(const fs::path& root) {
  std::vector<PciDevice> found;
  for (const fs::path& entry : children(root / "sys/bus/pci/devices")) {
    const std::string kind = read_line(entry / "class");
    if (read_line(entry / "vendor") != "0x10de" || kind.rfind("0x03", 0) != 0) continue;
    if (std::optional<PciDevice> device = transport::pci_device(entry)) found.push_back(*device);
  }
  return found;
}

// Whether the bridge's Access Control Services redirect requests or completions upwards.
std::optional<bool> acs_redirects(const fs::path& bridge) {
  const std::string config = read_text(bridge / "config");
  if (config.size() < 4096) return std::nullopt;  // without root, only 64 bytes can be read
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(config[at]); };
  const auto word = [&](size_t at) { return byte(at) | byte(at + 1) << 8; };
  constexpr unsigned kAcs = 0x000d;
  constexpr unsigned kRequestAndCompletionRedirect = 0x04 | 0x08;
  size_t at = 0x100;
  for (int steps = 0; at >= 0x100 && at + 8 <= config.size() && steps < 64; ++steps) {
    if (static_cast<unsigned>(word(at)) == kAcs) {
      return (word(at + 6) & kRequestAndCompletionRedirect) != 0;
    }
    at = static_cast<size_t>(word(at + 2) >> 4);
  }
  return false;
}

void check_acs(const PciRoute& route, const std::string& pair, Findings& findings) {
  for (const fs::path& bridge : route.apart) {
    const std::optional<bool> redirects = acs_redirects(bridge);
    if (!redirects) {
      findings.push_back({Verdict::kNote, "ACS between " + pair + " cannot be read",
                          "run rcuda-doctor as root (sudo rcuda-doctor)"});
      return;
    }
    if (*redirects) {
      const std::string address = bridge.filename().string();
      findings.push_back(
          {Verdict::kWarning,
           "ACS of bridge " + address + " sends traffic between " + pair + " through the CPU",
           "setpci -s " + address +
               " ECAP_ACS+6.w=0000 (or switch ACS off in the BIOS), unless virtual "
               "machines need it"});
      return;
    }
  }
  findings.push_back({Verdict::kGood, "ACS lets " + pair + " communicate directly", ""});
}

}  // namespace

std::vector<Gid> usable_gids(const fs::path& root) {
  std::vector<Gid> gids;
  for (const fs::path& device : children(root / "sys/class/infiniband")) {
    for (const fs::path& port : children(device / "ports")) {
      for (const fs::path& entry : children(port / "gids")) {
        const std::string value = read_line(entry);
        const std::string index = entry.filename().string();
        const std::string type = read_line(port / "gid_attrs/types" / index);
        if (value.empty() || value == "0000:0000:0000:0000:0000:0000:0000:0000" || type.empty()) {
          continue;
        }
        gids.push_back({device.filename().string(), std::atoi(port.filename().c_str()),
                        std::atoi(index.c_str()), type, read_line(port / "gid_attrs/ndevs" / index),
                        ipv4_of(value)});
      }
    }
  }
  return gids;
}

Findings check_devices(const fs::path& root) {
  Findings findings;
  const std::vector<fs::path> devices = children(root / "sys/class/infiniband");
  if (devices.empty()) {
    return {{Verdict::kNote, "no RDMA device: shm and tcp will be used",
             "if this node has one, load its driver (mlx5_ib, ...); for a trial without hardware: "
             "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV"}};
  }
  if (!is_there(root / "dev/infiniband/rdma_cm")) {
    findings.push_back({Verdict::kBad, "/dev/infiniband/rdma_cm is missing",
                        "modprobe rdma_ucm (package rdma-core loads it at boot)"});
  }
  const std::vector<Gid> gids = usable_gids(root);
  std::set<std::string> interfaces;
  for (const fs::path& device : devices) {
    for (const fs::path& port : children(device / "ports")) {
      const std::string name = device.filename().string() + " port " + port.filename().string();
      check_port(port, name, findings);
      if (read_line(port / "link_layer") != "Ethernet") continue;
      bool found = false;
      for (const Gid& gid : gids) {
        if (gid.device != device.filename() || gid.type != "RoCE v2" || gid.ipv4.empty()) continue;
        found = true;
        findings.push_back({Verdict::kGood,
                            name + " has GID " + std::to_string(gid.index) + ", RoCE v2, " +
                                gid.ipv4 + " on " + gid.interface,
                            ""});
        check_mtu(root, gid.interface, interfaces, findings);
      }
      if (!found) {
        findings.push_back({Verdict::kWarning, name + " has no RoCE v2 GID with an IPv4 address",
                            "give its interface an address: ip addr add ADDRESS/24 dev DEV"});
      }
    }
  }
  return findings;
}

Findings check_memlock(const transport::LockedMemoryLimit& limit, bool matters) {
  if (limit.none) return {{Verdict::kGood, "locked memory is not limited", ""}};
  const std::string what = "locked memory is limited to " + bytes_text(limit.bytes);
  if (!matters) {
    return {{Verdict::kGood, what + ", which matters only with an RDMA device", ""}};
  }
  const std::string remedy =
      "ulimit -l unlimited; for users: '* - memlock unlimited' in /etc/security/limits.d/; "
      "for the service: LimitMEMLOCK=infinity";
  // A worker's default staging memory (--staging-bytes), plus windows and a margin.
  constexpr uint64_t kMin = (64u << 20) + (16u << 20);
  if (limit.bytes < kMin) {
    return {{Verdict::kBad, what + ", and a session registers " + bytes_text(kMin) + " at once",
             remedy}};
  }
  return {{Verdict::kNote, what + "; all page-locked memory of a program must fit into this limit",
           remedy}};
}

Findings check_gpudirect(const fs::path& root) {
  const std::string version = read_line(root / "proc/driver/nvidia/version");
  if (version.empty())
    return {{Verdict::kNote,
             "no NVIDIA driver, so no GPUDirect: neither dma-buf nor nvidia_peermem",
             "nothing to do on a client; a server needs NVIDIA's driver (nvidia-open)"}};
  Findings findings;
  const bool open_module = version.find("Open Kernel Module") != std::string::npos;
  const bool peermem = is_there(root / "sys/module/nvidia_peermem");
  if (open_module) {
    findings.push_back(
        {Verdict::kGood, "the open NVIDIA module exports GPU memory as dma-buf", ""});
  } else if (peermem) {
    findings.push_back({Verdict::kGood, "nvidia_peermem is loaded", ""});
  } else {
    findings.push_back(
        {Verdict::kWarning, "GPUDirect RDMA is not available: copies go through host memory",
         "install the open kernel module (nvidia-open), or modprobe nvidia_peermem"});
  }
  return findings;
}

Findings check_pci(const fs::path& root) {
  Findings findings;
  const std::vector<PciDevice> all_gpus = gpus(root);
  bool adapter_seen = false;
  for (const fs::path& entry : children(root / "sys/class/infiniband")) {
    const std::optional<PciDevice> nic = transport::pci_device(entry / "device");
    if (!nic || !transport::is_pci_address(nic->address)) continue;
    adapter_seen = true;
    for (const PciDevice& gpu : all_gpus) {
      const std::string pair = "GPU " + gpu.address + " and " + entry.filename().string();
      const PciDistance::Level level = transport::pci_distance(gpu, *nic).level;
      const bool far = level == PciDistance::Level::kFar;
      findings.push_back({far ? Verdict::kNote : Verdict::kGood,
                          pair + " are " + transport::describe(level),
                          far ? "use an adapter on this GPU's NUMA node (RCUDA_VERBS_DEVICE), if "
                                "the host has one"
                              : ""});
      check_acs(transport::pci_route(gpu, *nic), pair, findings);
    }
  }
  if (findings.empty()) {
    const char* missing = !all_gpus.empty() ? "RDMA adapter"
                          : adapter_seen    ? "NVIDIA GPU"
                                            : "NVIDIA GPU and no RDMA adapter";
    findings.push_back(
        {Verdict::kNote,
         std::string("no ") + missing +
             " on the PCI bus, so no path between a GPU and an adapter was checked",
         "nothing to do on a client; on a server, 'lspci' shows what the host sees"});
  }
  return findings;
}

Findings check_huge_pages(const fs::path& root) {
  std::ifstream in(root / "proc/meminfo");
  std::map<std::string, long> values;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    long value = 0;
    if (words >> name >> value) values[name] = value;
  }
  const std::string transparent = read_line(root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (values["HugePages_Total:"] > 0) {
    return {{Verdict::kGood,
             std::to_string(values["HugePages_Total:"]) + " huge pages are reserved", ""}};
  }
  if (transparent.find("[never]") != std::string::npos) {
    return {{Verdict::kNote, "no huge pages: registering large buffers takes longer",
             "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"}};
  }
  return {{Verdict::kGood, "transparent huge pages are on", ""}};
}

}  // namespace rcuda::doctor
