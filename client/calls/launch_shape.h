// The shape of a launch: what a driver refuses at the call.
//
// Any thread; nothing blocks.
#pragma once

#include <cuda.h>

#include "client/calls/functions.h"

namespace rcuda::client {

struct Device;

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
};

// CUDA_ERROR_INVALID_VALUE for a shape that the device or the function cannot run.
CUresult check_shape(const LaunchShape& shape, const Device& device, const FunctionInfo& info);

}  // namespace rcuda::client
