// The process that parks or wakes workers together (server/daemon/pool/park_helper.h). It loads the
// driver, calls cuCheckpointProcess*, prints the reason of a failure, and exits with a ParkExit.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

enum class ParkTask { kPark, kWake };
enum class ParkExit {
  kDone = 0,
  kRefused = 1,  // the workers go on: kPark has changed nothing; kWake has kept their old GPUs
  kBroken = 2,   // the state of the workers' processes is unknown
};

inline constexpr char kParkOption[] = "--park";
// The GPUs that change when workers wake: from the UUID of the old GPU to the UUID of the new GPU.
using GpuMoves = std::map<std::string, std::string>;
std::string park_argument(ParkTask task, const std::vector<pid_t>& workers,
                          const GpuMoves& moves = {});
// Does not return: ends the process with a ParkExit. `argument`: a text of park_argument().
int run_park_process(const Settings& settings, const std::string& argument);

}  // namespace rcuda::server
