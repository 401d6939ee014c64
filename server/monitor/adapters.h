// Which RDMA adapter is nearest to each GPU, by PCI.
//
// Threads: any. Blocking: reads a few files of sysfs for each GPU and adapter. Errors: what sysfs
// does not place stays without an adapter.
#pragma once

#include <filesystem>
#include <vector>

#include "server/monitor/nvml_reader.h"

namespace rcuda::server {

// `root`: "/", or a made-up tree in tests. `sample`: of these GPUs, in this order.
void find_adapters(const std::filesystem::path& root, const std::vector<GpuName>& gpus,
                   GpuSample* sample);

}  // namespace rcuda::server
