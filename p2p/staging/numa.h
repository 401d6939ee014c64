// The placement of threads on NUMA nodes. Memory comes from the node of the thread that touches it
// first. Plain system calls, without libnuma. Any thread.
#pragma once

#include <string>

namespace rcuda::p2p {

// Binds the calling thread, and threads that it starts later, to the node's CPUs. Returns false if
// that is not possible. `sysfs` is "/sys" except in tests.
bool run_on_numa_node(int node, const std::string& sysfs = "/sys");

}  // namespace rcuda::p2p
