// The checks of one node: everything that an administrator would check by hand for RDMA and
// GPUDirect.
//
// The checks read files below `root` ("/" in real use, a made-up tree in tests) and change nothing.
// Only check_memlock() gets its input from the caller. A file that cannot be read leads to a
// finding that explains the consequence. Findings of checks that need root say so. docs/rdma.md has
// the background of each remedy.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/transport/verbs/locked_memory.h"
#include "tools/rcuda-doctor/finding.h"

namespace rcuda::doctor {

// A GID that connections can use.
struct Gid {
  std::string device;
  int port = 0;
  int index = 0;
  std::string type;       // "RoCE v2", "IB/RoCE v1"
  std::string interface;  // network interface
  std::string ipv4;       // empty unless the GID holds an IPv4 address
};

std::vector<Gid> usable_gids(const std::filesystem::path& root);

Findings check_devices(const std::filesystem::path& root);
// `matters`: whether the node has an RDMA device, which needs locked memory.
Findings check_memlock(const transport::LockedMemoryLimit& limit, bool matters);
Findings check_gpudirect(const std::filesystem::path& root);
// How far each GPU is from each RDMA device, and whether ACS sends their traffic through the CPU.
Findings check_pci(const std::filesystem::path& root);
Findings check_huge_pages(const std::filesystem::path& root);

}  // namespace rcuda::doctor
