// Starts the process of a worker. Any thread; blocks until the binary runs. Errors: the system's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::server {

// Numbers of a worker's descriptors.
inline constexpr int kWorkerControl = 3;  // the worker's end of the socket pair
inline constexpr int kWorkerReports = 4;  // its end of the pipe to the daemon (reports.h)

// The worker's ends, which the caller keeps. Their numbers are above those.
struct WorkerEnds {
  int control;
  int reports;
  int log;  // its stdout and stderr (worker_log.h)
};

// `base`: the number of its Base. `environment`: all of it, as NAME=value.
Result<pid_t> spawn_worker(const std::string& binary, const WorkerEnds& ends, uint32_t base,
                           std::vector<std::string> environment);

}  // namespace rcuda::server
