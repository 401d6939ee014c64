// The planner's table for one pair of GPUs, from a measurements file, as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "p2p/planner/measurements.h"
#include "p2p/planner/planner.h"

namespace rcuda::tools {

struct PlanQuery {
  std::string from_gpu;  // UUID or the beginning of one
  std::string to_gpu;
  std::string nic;      // of the source; empty: whichever was measured
  std::string to_host;  // empty: whichever was measured
  bool same_host = false;
  std::string strategy;  // as RCUDA_P2P_STRATEGY
  std::string path;      // as RCUDA_P2P_PATH
  std::vector<uint64_t> sizes;
};

// The GPUs a measurements file knows, in its order.
std::vector<std::string> known_gpus(const p2p::Measurements& measurements);
// One line per size: the plan, its predicted time and bandwidth, what the published hybrid would
// take, and the reason. kNotFound and kInvalidArgument say what the query should have been.
Result<std::string> plan_table(const p2p::Measurements& measurements, const PlanQuery& query);
// The legs of the file, one line each.
std::string legs_table(const p2p::Measurements& measurements);

}  // namespace rcuda::tools
