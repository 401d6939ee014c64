// Finds and initialises the CUDA driver of a worker: NVIDIA's if it works and has devices, else
// softgpu's; or the one that RCUDA_DRIVER names.
//
// rcuda's own client library has the same name, libcuda.so.1, and may be preloaded or first in
// LD_LIBRARY_PATH. A server that loaded it would call itself. The daemon starts workers with
// worker_environment(), which removes it from both, and load_driver() refuses it as well.
// Threads: load_driver() is called once per worker, before other threads. Blocking: it, for cuInit
// (half a second with NVIDIA's driver). Errors say what was tried and what to do.
#pragma once

#include <string>
#include <vector>

#include "api/driver_table.h"
#include "common/base/status.h"

namespace rcuda::server {

// CUDA 12.0, the first with libraries.
inline constexpr int kOldestVersion = 12000;

struct LoadedDriver {
  // Completed, if the driver is older (older_driver.h).
  api::DriverTable table;
  std::string path;
  int version = 0;
  int device_count = 0;
};

// `choice`: "auto", "nvidia", "softgpu" or a path.
Result<LoadedDriver> load_driver(const std::string& choice);

// This process's environment for a worker: without LD_PRELOAD, and without the folders of
// LD_LIBRARY_PATH in which libcuda.so.1 is rcuda's client library; with `more` added or replaced;
// with CUDA_DEVICE_MAX_CONNECTIONS no less than kConnections.
std::vector<std::string> worker_environment(const std::vector<std::string>& more);

// How many queues NVIDIA's driver is to make for each kind of a device's work. By default it makes
// 8 for kernels and 4 for copies of either direction; if it is told 8, it makes 8 of each. Each
// queue takes time at a worker's start (docs/p2p_measurements.md).
inline constexpr int kConnections = 8;
// How many streams of a device may have work under way while one is held for another worker. That
// many leave queues for the copies that end the hold, with this process's environment.
int most_streams();

}  // namespace rcuda::server
