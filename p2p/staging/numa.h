// The placement of threads on NUMA nodes. Memory comes from the node of the thread that touches it
// first. The node of a PCI device comes from sysfs. Plain system calls, without libnuma. Any
// thread.
#pragma once

#include <string>

namespace rcuda::p2p {

// Returns the node of a PCI device ("0000:3b:00.0"), or -1 if sysfs does not know the node (a host
// with one node, a virtual machine). `sysfs` is "/sys" except in tests.
int numa_node_of_pci(const std::string& pci_bus_id, const std::string& sysfs = "/sys");
// Binds the calling thread, and threads that it starts later, to the node's CPUs. Returns false if
// that is not possible.
bool run_on_numa_node(int node, const std::string& sysfs = "/sys");

}  // namespace rcuda::p2p
