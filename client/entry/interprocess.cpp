// Memory and events of another process, which has its own worker on the same server. An address
// opened here belongs to this process's worker.

#include <cuda.h>

#include "client/calls/marshal.h"
#include "client/calls/refused_import.h"
#include "client/process/process.h"
#include "generated/client/forward.h"

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  Target target;
  if (CUresult result = target_current(&target); result != CUDA_SUCCESS) return result;
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr opened = 0;
  if (CUresult result = forward_cuIpcOpenMemHandle_v2(&opened, handle, flags);
      result != CUDA_SUCCESS) {
    return explain_import(result);
  }
  Allocation allocation;
  allocation.base = opened;
  const CUresult result = forward_cuMemGetAddressRange_v2(nullptr, &allocation.bytes, opened);
  if (result != CUDA_SUCCESS) {
    (void)forward_cuIpcCloseMemHandle(opened);
    return result;
  }
  allocation.placement = Placement::kMapped;
  allocation.session = target.session;
  allocation.context = target.context;
  allocation.device = target.device;
  // Fails if the same memory is already open. The driver counts the openings.
  Registry& memory = Process::get().memory();
  if (!memory.add(std::move(allocation))) {
    const auto known = memory.find(opened);
    if (!known || known->session != target.session) {  // it is another server's
      (void)forward_cuIpcCloseMemHandle(opened);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  *address = opened;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  const CUresult result = forward_cuIpcCloseMemHandle(address);
  if (result != CUDA_SUCCESS) return result;
  size_t bytes = 0;
  if (forward_cuMemGetAddressRange_v2(nullptr, &bytes, address) != CUDA_SUCCESS) {
    (void)Process::get().memory().remove(address);  // this was the last opening
  }
  return result;
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  const CUresult result = forward_cuIpcOpenEventHandle(event, handle);
  if (result != CUDA_SUCCESS) return result;
  auto* opened = find<Event>(*event);
  opened->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  opened->state.leave_to_worker();
  return CUDA_SUCCESS;
}

}  // extern "C"
