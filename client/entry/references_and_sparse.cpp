// Texture references and sparse arrays: what the generated calls cannot do alone.
#include <vector>

#include <cuda.h>

#include "client/calls/marshal.h"
#include "client/objects/kinds.h"
#include "client/process/process.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The worker's numbers of the devices in a mask of the application's.
CUresult worker_mask(const Target& target, unsigned mask, unsigned* worker) {
  *worker = 0;
  for (CUdevice dev = 0; mask >> dev != 0; ++dev) {
    if ((mask >> dev & 1) == 0) continue;
    const Device* device = Process::get().device(dev);
    if (!device || device->session != target.session || device->ordinal >= 32) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *worker |= 1u << device->ordinal;
    if (dev == 31) break;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuTexRefDestroy(CUtexref reference) {
  TextureReference* found;
  if (CUresult result = find_object(reference, &found, CUDA_ERROR_INVALID_HANDLE);
      result != CUDA_SUCCESS) {
    return result;
  }
  // A module's reference ends with the module.
  if (found->id & rcuda::wire::kWorkerMinted) return CUDA_SUCCESS;
  return forward_cuTexRefDestroy(reference);
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  Target target;
  if (CUresult result = target_for_work(stream, &target); result != CUDA_SUCCESS) return result;
  if (!list || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUarrayMapInfo> mapped(list, list + count);
  for (CUarrayMapInfo& info : mapped) {
    if (CUresult result = worker_mask(target, info.deviceBitMask, &info.deviceBitMask);
        result != CUDA_SUCCESS) {
      return result;
    }
    if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) info.memHandle.memHandle = 0;
  }
  return forward_cuMemMapArrayAsync(mapped.data(), count, stream);
}

}  // extern "C"
