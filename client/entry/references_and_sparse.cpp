// Texture references and sparse arrays: the calls for which generated code does not suffice.
#include <vector>

#include <cuda.h>

#include "client/objects/kinds.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuTexRefDestroy(CUtexref reference) {
  TextureReference* found;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(reference, &found, CUDA_ERROR_INVALID_HANDLE));
  // A module's reference ends with the module.
  if (found->id & rcuda::wire::kWorkerMinted) return CUDA_SUCCESS;
  return forward_cuTexRefDestroy(reference);
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(find_work_route(stream).result());
  if (!list || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUarrayMapInfo> mapped(list, list + count);
  for (CUarrayMapInfo& info : mapped) {
    if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) info.memHandle.memHandle = 0;
  }
  return forward_cuMemMapArrayAsync(mapped.data(), count, stream);
}

}  // extern "C"
