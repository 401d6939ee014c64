#include "client/calls/launch_shape.h"

#include <cstdint>

#include "client/process/process.h"

namespace rcuda::client {
namespace {

int function_attribute(const FunctionInfo& info, CUfunction_attribute which) {
  return info.attributes[which].load(std::memory_order_relaxed);
}

}  // namespace

CUresult check_shape(const LaunchShape& shape, const Device& device, const FunctionInfo& info) {
  constexpr CUdevice_attribute kGrid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  constexpr CUdevice_attribute kBlock[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > static_cast<unsigned>(device.attribute(kGrid[i])) ||
        shape.block[i] == 0 ||
        shape.block[i] > static_cast<unsigned>(device.attribute(kBlock[i]))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    threads *= shape.block[i];
  }
  if (threads >
      static_cast<uint64_t>(device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int function_threads = function_attribute(info, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  if (function_threads > 0 && threads > static_cast<uint64_t>(function_threads)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int dynamic_limit =
      function_attribute(info, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  if (dynamic_limit >= 0 && shape.shared_bytes > static_cast<unsigned>(dynamic_limit)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace rcuda::client
