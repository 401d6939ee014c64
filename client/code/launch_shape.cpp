#include "client/code/launch_shape.h"

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

std::span<const std::byte> value_of(const CUlaunchAttribute& attribute) {
  const CUlaunchAttributeValue& value = attribute.value;
  const auto bytes = [&]() -> size_t {
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
        return 0;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        return sizeof value.clusterDim;
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        return sizeof value.memSyncDomainMap;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:  // the other bytes are an output
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
        return sizeof(int);
      default:
        return sizeof value;
    }
  }();
  return std::as_bytes(std::span(&value, 1)).first(bytes);
}

}  // namespace rcuda::client
