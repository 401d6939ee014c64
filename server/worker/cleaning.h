// What is left in a worker when its session is over, and whether it is gone.
//
// A worker may serve another session of the same owner once it is clean again (worker_session.h
// says when). What a session leaves is known in three ways:
//   - `leaves` of every command (api/table/README.md). A session with a command that may change
//   what
//     lasts as long as the process ends with its process
//   - what is left in the driver is destroyed, above all by a reset of the primary contexts. What a
//     driver keeps for a device is compared with what it was before the session (DriverState)
//   - what this process has is compared with what it had before its first session (ProcessState)
// A difference ends the worker: no case is known in which it would be right to go on.
//
// Threads: the worker's main thread. Blocking: for the driver. Errors: what is not as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <cuda.h>

#include "api/command_traits.h"
#include "api/driver_table.h"
#include "common/base/address_space.h"
#include "common/base/status.h"

namespace rcuda::server {

class Executor;

// What a session leaves, as its executor knows it.
struct Leftovers {
  api::Leaves leaves = api::Leaves::kNothing;
  std::vector<CUcontext> primaries;  // of its devices
  std::vector<CUcontext> contexts;   // that it has made
  std::vector<CUlibrary> libraries;  // which belong to no context
  std::vector<AddressRange> kept;    // closed addresses, to be given to the next session
};
Leftovers leftovers_of(Executor& executor);

// Whether all contexts become idle within a moment without an error. A driver's calls wait for
// kernels that may never end, so the process ends if they do not; `before_end` is called first.
Status settle(const api::DriverTable& driver, const Leftovers& left,
              const std::function<void()>& before_end);

// What a driver keeps for a device, by name: limits and flags of the primary context, memory and
// settings of the default pool, memory of graphs. Makes the context current.
using DriverState = std::map<std::string, uint64_t>;
DriverState driver_state(const api::DriverTable& driver, CUdevice device, CUcontext primary);

// What this process has, by name, and how often: descriptors, threads and mapped memory of this
// project, limits, the environment, the working directory. The driver's own threads,
// mappings and descriptors of devices are left out: they come and go with its work.
using ProcessState = std::map<std::string, uint64_t>;
ProcessState process_state();
void note_limits(ProcessState* state);  // sets its limits to what they are now

// Names the first difference; ok if there is none.
Status compare(const std::map<std::string, uint64_t>& before,
               const std::map<std::string, uint64_t>& after);

}  // namespace rcuda::server
