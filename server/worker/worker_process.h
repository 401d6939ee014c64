// A worker: the process that serves one session.
//
// run_worker() is the whole life of a worker. It closes the addresses outside of its base,
// initialises the driver and the devices, reports to the daemon that it is ready, waits for a
// session, and serves it. Contexts, faults and addresses of a session belong to the worker alone.
// Resources that a client has not released end with the process.
//
// Threads: the process's main thread. Blocking: until the session is over, or until the daemon has
// died or sends a StopRequest. Errors: a worker that cannot start reports the reason to the daemon
// and exits with status 2.
#pragma once

#include <cstdint>

#include "common/base/unique_fd.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

// Numbers of a worker's descriptors.
inline constexpr int kWorkerControl = 3;  // the worker's end of the socket pair
inline constexpr int kWorkerReports = 4;  // the worker's end of the pipe to the daemon (reports.h)

// `control`: the worker's end of the socket pair. `reports`: its end of the pipe to the daemon,
// with a higher number than `control`.
int run_worker(const Settings& settings, UniqueFd control, UniqueFd reports, uint32_t base_number);

}  // namespace rcuda::server
