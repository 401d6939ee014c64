// Finds and initialises the CUDA driver of a worker: NVIDIA's where it works and has devices, else
// softgpu's; or what RCUDA_DRIVER names.
//
// rcuda's own client library answers to the same name, libcuda.so.1, and may be preloaded or first
// in LD_LIBRARY_PATH: a server that loaded it would call itself. The daemon starts workers with
// worker_environment(), which takes both away, and load_driver() refuses it once more.
// Called once per worker, before threads. Blocks for cuInit (half a second with NVIDIA's driver).
// Errors say what was tried and what to do.
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
  int device_count = 0;
};

// `choice`: "auto", "nvidia", "softgpu" or a path.
Result<LoadedDriver> load_driver(const std::string& choice);

// This process's environment for a worker: without LD_PRELOAD, and without the folders of
// LD_LIBRARY_PATH in which libcuda.so.1 is rcuda's client library; with `more` added or replaced.
std::vector<std::string> worker_environment(const std::vector<std::string>& more);

}  // namespace rcuda::server
