// Finds and initialises the CUDA driver of a worker: NVIDIA's, or softgpu's on a machine without
// NVIDIA's driver; or the driver that RCUDA_DRIVER names.
//
// rcuda's own client library has the same name, libcuda.so.1, and may be preloaded or first in
// LD_LIBRARY_PATH. A server that loaded it would call itself. The daemon starts workers with
// worker_environment(), which removes the client library from both variables, and load_driver()
// refuses it as well.
// A driver older than api::kOldestDriver is refused: it does not report the parameters of kernels.
// With "auto", softgpu does not take the place of an NVIDIA driver that fails or is too old,
// because that would hide the machine's GPUs.
// Threads: load_driver() is called once per process, on its main thread. Blocking: load_driver(),
// for cuInit (half a second with NVIDIA's driver). Errors say what was tried and name the remedy.
#pragma once

#include <string>
#include <vector>

#include "api/driver_table.h"
#include "common/base/status.h"

namespace rcuda::server {

struct LoadedDriver {
  api::DriverTable table;
  std::string path;
  int version = 0;
};

// `choice`: "auto", "nvidia", "softgpu" or a path. `nvidia_nodes`: the device files of
// NVIDIA's kernel driver on this machine, also those that belong to no single GPU.
Result<LoadedDriver> load_driver(const std::string& choice,
                                 const std::vector<std::string>& nvidia_nodes = {});

// Returns this process's environment, changed for a worker: without LD_PRELOAD; without the folders
// of LD_LIBRARY_PATH in which libcuda.so.1 is rcuda's client library; with the variables of `more`,
// which replace variables of the same name; with CUDA_DEVICE_MAX_CONNECTIONS no less than
// kConnections; without CUDA_LAUNCH_BLOCKING, because the executor thread serves all commands and
// must not wait for a kernel.
std::vector<std::string> worker_environment(const std::vector<std::string>& more);

// The value of CUDA_DEVICE_MAX_CONNECTIONS for workers: the number of queues that NVIDIA's driver
// makes on each device for each kind of work. By default it makes 8 for kernels and 4 for copies in
// each direction; with this value it makes 8 of each. Each queue takes time at a worker's start
// (docs/p2p_measurements.md).
inline constexpr int kConnections = 8;
// The number of a device's streams that may have unfinished work while one of them is held for a
// copy between workers (docs/glossary.md: stream place). The remaining queues are for the copies
// that end the hold. The result depends on this process's environment.
int most_streams();

}  // namespace rcuda::server
