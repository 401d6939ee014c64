// rcuda-smi topo: the paths between the GPUs of several servers.
#pragma once

#include <string>
#include <vector>

#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {

// Returns a matrix in the terms of nvidia-smi, with a legend: NVL for NVLink, otherwise the nearest
// common ancestor (INT, PIX, PXB, PHB, NODE, SYS). HOST: the GPUs belong to different servers on
// one machine; NET: to servers on two machines. "*": the GPUs share their nearest RDMA adapter,
// which the last column names.
std::string matrix_of(const std::vector<Look>& looks);

// Measures the latency and bandwidth of copies between the first GPUs of each pair of servers, in
// both directions. Blocks for seconds per pair. If a pair cannot be measured, its line says why.
std::string network_of(const std::vector<Look>& looks);

// Returns the matrix as JSON: each GPU with the list of its paths to all GPUs, in the same order.
// If `measures`, adds the measurements, and then blocks as network_of() does.
nlohmann::json topology_json(const std::vector<Look>& looks, bool measures);

}  // namespace rcuda::smi
