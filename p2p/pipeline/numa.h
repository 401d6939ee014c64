// Where memory and threads should live: the NUMA node of a PCI device, from sysfs.
// Plain system calls, no libnuma. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace rcuda::p2p {

// The node of "0000:3b:00.0" or -1 where sysfs does not know (one node, a virtual machine).
// `sysfs` is "/sys" but in tests.
int numa_node_of_pci(const std::string& pci_bus_id, const std::string& sysfs = "/sys");
// The node of an RDMA device ("mlx5_0"), or -1.
int numa_node_of_rdma(const std::string& device, const std::string& sysfs = "/sys");

// Keeps the calling thread on the node's CPUs; false where that was not possible.
bool run_on_numa_node(int node, const std::string& sysfs = "/sys");
// Asks for the pages of a fresh mapping to come from the node; false where the kernel declined.
bool place_on_numa_node(void* base, size_t bytes, int node);

}  // namespace rcuda::p2p
