// A worker: the process that serves one session and ends with it.
//
// run_worker() is the whole of a worker's life. It closes the addresses above its window,
// initialises the driver and the devices, tells the daemon that it is ready, waits for a session,
// and serves it. Contexts, faults and addresses of a session are the worker's alone; whatever a
// client leaves behind goes with the process. Blocks until the session is over, the daemon is gone
// or told it to stop. Returns the exit status.
#pragma once

#include <cstdint>

#include "common/base/unique_fd.h"
#include "server/worker/settings.h"

namespace rcuda::server {

int run_worker(const Settings& settings, UniqueFd daemon, uint32_t window_index);

}  // namespace rcuda::server
