// Calls that do not return CUDA_ERROR_INVALID_DEVICE for a device that does not exist. Like a
// driver (580 on an H100), they return CUDA_ERROR_INVALID_VALUE, or ignore the device. Exception:
// cuMemPoolSetAccess is here because it accepts an empty list of access descriptors.
#include <cuda.h>

#include "client/objects/arena.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

CUresult as_value(CUresult result) {
  return result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : result;
}

bool is_absent(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && !Process::get().device(location.id);
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return as_value(forward_cuDeviceGetMemPool(pool, device));
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return as_value(forward_cuMemPoolCreate(pool, properties));
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (location && is_absent(*location)) return CUDA_ERROR_INVALID_VALUE;
  return forward_cuMemPoolGetAccess(flags, pool, location);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* list, size_t count) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (count == 0 && list && find<MemoryPool>(pool)) return CUDA_SUCCESS;
  return forward_cuMemPoolSetAccess(pool, list, count);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* list,
                        size_t count) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  for (size_t i = 0; list && i < count; ++i) {
    if (is_absent(list[i].location)) return CUDA_ERROR_INVALID_VALUE;
  }
  return forward_cuMemSetAccess(address, bytes, list, count);
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!properties || !is_absent(properties->location)) {
    return forward_cuMemGetAllocationGranularity(granularity, properties, option);
  }
  CUmemAllocationProp of_first = *properties;
  of_first.location.id = 0;
  return forward_cuMemGetAllocationGranularity(granularity, &of_first, option);
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, CUarray array,
                                      CUdevice device) {
  return as_value(forward_cuArrayGetMemoryRequirements(requirements, array, device));
}

}  // extern "C"
