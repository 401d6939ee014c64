#include "client/process/remote_attributes.h"

#include <cstdint>

#include <cuda.h>

namespace rcuda::client {

void correct_attributes(wire::DeviceInfo* info) {
  constexpr int32_t kUnknown = INT32_MIN;  // not known to the server's driver
  constexpr CUdevice_attribute kNotRemote[] = {
      // Managed memory does not migrate between this process and the GPU: kernels use the host's
      // pages in place, over a bus without atomic operations, or use a copy (mirror.h).
      CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
      CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
      // The pages of this process are not those of the process that has the GPU.
      CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
      CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
      // An adapter of this machine cannot reach the GPU, and device memory has no descriptor here.
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
      // The functions of these features behave as in a driver without the features
      // (api/exports/absent.cpp).
      CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
      CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
      CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH,
      CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED,
  };
  for (const CUdevice_attribute attribute : kNotRemote) {
    const auto index = static_cast<size_t>(attribute);
    if (index < info->attributes.size() && info->attributes[index] != kUnknown) {
      info->attributes[index] = 0;
    }
  }
}

}  // namespace rcuda::client
