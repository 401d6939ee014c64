// A worker: the process that serves one session and ends with it.
//
// run_worker() is the whole life of a worker. It closes the addresses above its window, initialises
// the driver and the devices, tells the daemon that it is ready, waits for a session, and serves
// it. Contexts, faults and addresses of a session belong to the worker alone, and whatever a client
// leaves behind ends with the process.
// Threads: the process's main thread. Blocking: until the session is over, or the daemon is gone or
// says stop. Errors: the daemon is told why a worker cannot start; the exit status is 2.
#pragma once

#include <cstdint>

#include "common/base/unique_fd.h"
#include "server/worker/settings.h"

namespace rcuda::server {

int run_worker(const Settings& settings, UniqueFd daemon, uint32_t window_index);

}  // namespace rcuda::server
