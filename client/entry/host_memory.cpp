// Page-locked and registered host memory.

#include "client/hostmem/host_memory.h"

#include <cuda.h>

#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/cuda/return_if_error.h"

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

namespace {

CUresult find_host(const void* pointer, Allocation* allocation) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_current());
  const auto found = Process::get().memory().find(reinterpret_cast<uintptr_t>(pointer));
  if (!found || found->session) return CUDA_ERROR_INVALID_VALUE;
  *allocation = *found;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
  return allocate_host(pointer, bytes, flags, false);
}

CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return allocate_host(pointer, bytes, 0, false);
}

// Refuses managed memory, which cuMemFree frees.
CUresult cuMemFreeHost(void* pointer) {
  if (!pointer) return check_not_destroyed();
  const auto found = Process::get().memory().find(reinterpret_cast<uintptr_t>(pointer));
  if (found && found->placement == Placement::kManaged) return CUDA_ERROR_INVALID_VALUE;
  return free_host(pointer);
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return register_host(pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void* pointer) { return unregister_host(pointer); }

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
  if (!device || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  RCUDA_RETURN_IF_CUDA_ERROR(find_host(pointer, &allocation));
  if (!allocation.reachable) return CUDA_ERROR_NOT_SUPPORTED;
  mirror_reachable(any_route(), pointer);
  *device = reinterpret_cast<uintptr_t>(pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  RCUDA_RETURN_IF_CUDA_ERROR(find_host(pointer, &allocation));
  // With unified addresses, page-locked memory is mapped even if it was not requested as mapped.
  *flags = allocation.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

}  // extern "C"
