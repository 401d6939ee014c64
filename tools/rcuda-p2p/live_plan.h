// The planner's table for two GPUs of running servers, with measured times of copies between them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace rcuda::tools {

struct LiveQuery {
  std::string from, to;        // host[@port]:gpu, as in RCUDA_DEVICES
  std::string strategy, path;  // values of RCUDA_P2P_STRATEGY and RCUDA_P2P_PATH
  std::vector<uint64_t> sizes;
};

// A row of the planner's table of methods (Planner::table).
struct LiveMethod {
  std::string name;  // "host over shm"
  // The predicted time with the best chunks, with a star if the plan has this method; or "not
  // measured", or "needs ...".
  std::string cost;
  bool possible() const { return !cost.starts_with("needs "); }
};

struct LiveCopy {
  uint64_t bytes = 0;
  double predicted_us = 0, measured_us = 0;  // measured: median of several copies
  std::string plan;
  std::vector<LiveMethod> methods;
  double gbps() const { return static_cast<double>(bytes) / measured_us * 1e-3; }  // GB/s
};

// Opens a session with each server, has the two workers connect and measure their legs, then
// copies each size several times and requests the plan of this size. Calls `begun` with the names
// of the two GPUs, then `copied` after the copies of each size. Blocks for seconds.
Status measure_copies(const LiveQuery& query, const std::function<void(const std::string&)>& begun,
                      const std::function<void(const LiveCopy&)>& copied);

// Prints the results of measure_copies() as a table, line by line: the methods that are not
// possible and why, then for each size the predicted time of each method, the measured time and
// the plan.
Status print_live_plan(const LiveQuery& query, std::FILE* out);

}  // namespace rcuda::tools
