// The placement of memory and threads on NUMA nodes. The node of a PCI device comes from sysfs.
// Plain system calls, without libnuma. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace rcuda::p2p {

// The node of a PCI device ("0000:3b:00.0"), or -1 if sysfs does not know it (one node, a virtual
// machine). `sysfs` is "/sys" except in tests.
int numa_node_of_pci(const std::string& pci_bus_id, const std::string& sysfs = "/sys");
// The node of an RDMA device ("mlx5_0"), or -1.
int numa_node_of_rdma(const std::string& device, const std::string& sysfs = "/sys");

// Binds the calling thread to the node's CPUs. Returns false if that is not possible.
bool run_on_numa_node(int node, const std::string& sysfs = "/sys");
// Requests that the pages of a fresh mapping come from the node. Returns false if the kernel
// refused.
bool place_on_numa_node(void* base, size_t bytes, int node);

}  // namespace rcuda::p2p
