// The process that parks or wakes a worker (server/daemon/pool/park_helper.h). It loads the driver,
// calls its cuCheckpointProcess*, prints one line if that fails, and exits with a ParkExit.
#pragma once

#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

enum class ParkTask { kPark, kWake };
enum class ParkExit {
  kDone = 0,
  kRefused = 1,  // the worker's process runs as before
  kBroken = 2,   // its state is unknown
};

inline constexpr char kParkOption[] = "--park";
std::string park_argument(ParkTask task, pid_t worker);
// Returns the exit status. `argument` is a text of park_argument().
int run_park_process(const Settings& settings, const std::string& argument);

}  // namespace rcuda::server
