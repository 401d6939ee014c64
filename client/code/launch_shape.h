// The shape of a launch: what a driver refuses at the call. The attributes of a launch.
//
// Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <span>

#include <cuda.h>

#include "client/code/functions.h"

namespace rcuda::client {

struct Device;

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
};

// CUDA_ERROR_INVALID_VALUE for a shape that the device or the function cannot run.
CUresult check_shape(const LaunchShape& shape, const Device& device, const FunctionInfo& info);

// The bytes of the attribute's value that count, for a key. Programs leave others uninitialised.
// All bytes of an attribute that this build does not know.
std::span<const std::byte> value_of(const CUlaunchAttribute& attribute);

}  // namespace rcuda::client
