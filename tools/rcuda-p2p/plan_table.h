// The planner's table for one pair of GPUs, from a measurements file, as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "p2p/plan/measurements.h"
#include "p2p/plan/planner.h"

namespace rcuda::tools {

struct PlanQuery {
  std::string from_gpu;  // UUID, or its beginning
  std::string to_gpu;
  std::string nic;      // of the source; empty: any measured NIC
  std::string to_host;  // empty: any measured host
  bool same_host = false;
  std::string strategy;  // value of RCUDA_P2P_STRATEGY
  std::string path;      // value of RCUDA_P2P_PATH
  std::vector<uint64_t> sizes;
};

// The GPUs in a measurements file, in its order.
std::vector<std::string> known_gpus(const p2p::Measurements& measurements);
// One line per size: the plan, its predicted time and bandwidth, the time of the published hybrid,
// and the reason. kNotFound and kInvalidArgument say how to correct the query.
Result<std::string> plan_table(const p2p::Measurements& measurements, const PlanQuery& query);
// The legs in the file, one line each.
std::string legs_table(const p2p::Measurements& measurements);

}  // namespace rcuda::tools
