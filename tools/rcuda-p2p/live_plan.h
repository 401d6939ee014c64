// The planner's table for two GPUs of running servers, with measured times of copies between them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace rcuda::tools {

struct LiveQuery {
  std::string from, to;        // host[@port]:gpu, as in RCUDA_DEVICES
  std::string strategy, path;  // values of RCUDA_P2P_STRATEGY and RCUDA_P2P_PATH
  std::vector<uint64_t> sizes;
};

// Opens a session with each server, has the two workers connect and measure their legs, then
// requests the plan of each size and copies that size several times. Writes one line per size as it
// goes. Blocks for seconds.
Status print_live_plan(const LiveQuery& query, std::FILE* out);

}  // namespace rcuda::tools
