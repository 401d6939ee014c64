// Checks the shape of a launch, as a driver does before the launch call returns. Also returns the
// values of launch attributes.
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

// Returns CUDA_ERROR_INVALID_VALUE for a shape that the device or the function cannot run.
CUresult check_shape(const LaunchShape& shape, const Device& device, const FunctionInfo& info);

// Returns the significant bytes of the attribute's value, for keys of caches. Programs may leave
// the other bytes uninitialised. For an attribute that this build does not know, returns all bytes.
std::span<const std::byte> value_of(const CUlaunchAttribute& attribute);

}  // namespace rcuda::client
