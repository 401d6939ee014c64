// rcuda-smi topo: the ways between the GPUs of several servers.
#pragma once

#include <string>
#include <vector>

#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {

// A matrix in the words of nvidia-smi, with its legend: NVL for NVLink, else the nearest common
// ancestor (PIX, PXB, PHB, NODE, SYS). HOST and NET: the GPUs are of different servers, on one
// machine and on two. "*": they share their nearest RDMA adapter, which the last column names.
std::string matrix_of(const std::vector<Look>& looks);

// Copies between the first GPUs of each two servers, and of these only, in both directions: latency
// and bandwidth as measured now. Blocks for seconds a pair. A pair that cannot be measured has a
// line that says why.
std::string network_of(const std::vector<Look>& looks);

}  // namespace rcuda::smi
