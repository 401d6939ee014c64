// Computes the result of cuDeviceGetProperties (deprecated): some attributes of a device in one
// struct.
#pragma once

#include <cuda.h>

namespace rcuda::cuda {

// `get` returns the value of a CUdevice_attribute.
template <typename Get>
CUdevprop device_properties(Get get) {
  CUdevprop properties{};
  properties.maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  properties.maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  properties.maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  properties.maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  properties.maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  properties.maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  properties.maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  properties.sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  properties.totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  properties.SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  properties.memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  properties.regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  properties.clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  properties.textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return properties;
}

}  // namespace rcuda::cuda
