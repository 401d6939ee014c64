// rcuda-smi topo: the paths between the GPUs of several servers.
#pragma once

#include <string>
#include <vector>

#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {

// Returns a matrix in the terms of nvidia-smi, with a legend: NVL for NVLink, otherwise the nearest
// common ancestor (PIX, PXB, PHB, NODE, SYS). HOST and NET: the GPUs belong to different servers,
// on one machine and on two machines. "*": the GPUs share their nearest RDMA adapter, which the
// last column names.
std::string matrix_of(const std::vector<Look>& looks);

// Measures the latency and bandwidth of copies between the first GPUs of each pair of servers, in
// both directions. Blocks for seconds per pair. If a pair cannot be measured, its line says why.
std::string network_of(const std::vector<Look>& looks);

// The matrix as lists of paths to all GPUs in the same order and, if `measures`, the measurements.
// Blocks as network_of().
nlohmann::json topology_json(const std::vector<Look>& looks, bool measures);

}  // namespace rcuda::smi
