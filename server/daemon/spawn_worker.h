// Starts the process of a worker. Any thread; blocks until the binary runs. Errors: the system's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::server {

// `control`: the worker's end of its socket pair. `base`: the number of its Base.
// `environment`: all of it, as NAME=value.
Result<pid_t> spawn_worker(const std::string& binary, int control, uint32_t base,
                           std::vector<std::string> environment);

}  // namespace rcuda::server
