// The driver functions that MovableMemory replaces (movable_memory.h).
#include <vector>

#include "common/cuda/return_if_error.h"
#include "server/executor/movable/movable_memory.h"
#include "server/executor/objects/context_guard.h"

namespace rcuda::server {

CUresult movable_cuMemGetAddressRange_v2(MovableMemory& movable, CUdeviceptr* base, size_t* bytes,
                                         CUdeviceptr address) {
  const CUresult result = movable.driver.cuMemGetAddressRange_v2(base, bytes, address);
  const auto* const found = result == CUDA_SUCCESS && bytes ? movable.find(address) : nullptr;
  if (found && found->second.owner) *bytes = found->second.requested;
  return result;
}

CUresult movable_cuDevicePrimaryCtxReset_v2(MovableMemory& movable, CUdevice device) {
  const api::DriverTable& driver = movable.driver;
  const CUcontext context = primary_context(driver, device);
  movable.forget_copy();
  const CUresult result = driver.cuDevicePrimaryCtxReset_v2(device);
  if (context && result == CUDA_SUCCESS) movable.end_context(context);
  return result;
}

CUresult movable_cuMemCreate(MovableMemory& movable, CUmemGenericAllocationHandle* handle,
                             size_t bytes, const CUmemAllocationProp* properties,
                             unsigned long long flags) {
  movable.end_freed();
  const bool moves = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  std::shared_ptr<MovableMemory::Physical> made(
      new MovableMemory::Physical{movable.driver, 0, *properties, bytes, !moves});
  RCUDA_RETURN_IF_CUDA_ERROR(movable.driver.cuMemCreate(&made->handle, bytes, properties, flags));
  *handle = movable.add_handle(std::move(made));
  return CUDA_SUCCESS;
}

CUresult movable_cuMemRelease(MovableMemory& movable, CUmemGenericAllocationHandle handle) {
  return movable.release_handle(handle) ? CUDA_SUCCESS : movable.driver.cuMemRelease(handle);
}

CUresult movable_cuMemRetainAllocationHandle(MovableMemory& movable,
                                             CUmemGenericAllocationHandle* handle, void* address) {
  const auto* const found = movable.find(reinterpret_cast<CUdeviceptr>(address));
  if (!found) return movable.driver.cuMemRetainAllocationHandle(handle, address);
  // Memory of cuMemAlloc has no handle.
  if (found->second.owner) return CUDA_ERROR_INVALID_VALUE;
  *handle = movable.add_handle(found->second.physical);
  return CUDA_SUCCESS;
}

CUresult movable_cuMemGetAllocationPropertiesFromHandle(MovableMemory& movable,
                                                        CUmemAllocationProp* properties,
                                                        CUmemGenericAllocationHandle handle) {
  const auto known = movable.find_handle(handle);
  return movable.driver.cuMemGetAllocationPropertiesFromHandle(properties,
                                                               known ? known->handle : handle);
}

CUresult movable_cuMemExportToShareableHandle(MovableMemory& movable, void* shareable,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  const auto known = movable.find_handle(handle);
  const CUresult result = movable.driver.cuMemExportToShareableHandle(
      shareable, known ? known->handle : handle, type, flags);
  if (result == CUDA_SUCCESS && known) known->stays = true;
  return result;
}

// Physical memory that becomes part of a sparse array never moves from then on.
CUresult movable_cuMemMapArrayAsync(MovableMemory& movable, CUarrayMapInfo* list, unsigned count,
                                    CUstream stream) {
  std::vector<CUarrayMapInfo> mapped(list, list + count);
  std::vector<std::shared_ptr<MovableMemory::Physical>> used;
  for (CUarrayMapInfo& info : mapped) {
    if (info.memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
    const auto known = movable.find_handle(info.memHandle.memHandle);
    if (!known) continue;
    info.memHandle.memHandle = known->handle;
    used.push_back(known);
  }
  const CUresult result = movable.driver.cuMemMapArrayAsync(mapped.data(), count, stream);
  if (result != CUDA_SUCCESS) return result;
  for (const auto& physical : used) physical->stays = true;
  return CUDA_SUCCESS;
}

}  // namespace rcuda::server
