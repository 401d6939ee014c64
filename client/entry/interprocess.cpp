// Memory and events of another process, which has its own worker on the same server. An address
// opened here belongs to this process's worker.

#include <utility>

#include <cuda.h>

#include "api/shared.h"
#include "client/code/refused_import.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

namespace {

rcuda::Mutex openings_mutex;  // held while Allocation::openings changes

}  // namespace

extern "C" {

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr opened = 0;
  if (CUresult result = forward_cuIpcOpenMemHandle_v2(&opened, handle, flags);
      result != CUDA_SUCCESS) {
    return explain_import(result);
  }
  if (!route.session->accepts(opened, 1, "imported memory")) return kSessionLost;
  Allocation allocation;
  allocation.base = opened;
  const CUresult result = forward_cuMemGetAddressRange_v2(nullptr, &allocation.bytes, opened);
  if (result != CUDA_SUCCESS) {
    (void)forward_cuIpcCloseMemHandle(opened, &route);
    return result;
  }
  if (!route.session->accepts(opened, allocation.bytes, "imported memory")) return kSessionLost;
  allocation.placement = Placement::kMapped;
  allocation.session = route.session;
  allocation.context = route.context;
  allocation.device = route.device;
  allocation.openings = 1;
  // add() fails if this process has already opened the memory.
  Registry& memory = Process::get().memory();
  rcuda::MutexLock lock(openings_mutex);
  if (!memory.add(std::move(allocation))) {
    const auto known = memory.find(opened);
    if (!known || known->session != route.session || known->openings == 0) {
      // Other memory of this process has the address.
      (void)forward_cuIpcCloseMemHandle(opened, &route);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory.update(opened, [](Allocation& found) { ++found.openings; });
  }
  *address = opened;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  Registry& memory = Process::get().memory();
  rcuda::MutexLock lock(openings_mutex);
  const auto known = memory.find(address);
  if (!known || known->base != address || known->openings == 0) return CUDA_ERROR_INVALID_VALUE;
  // The record is removed before the last close, because another thread may get the same address as
  // soon as the worker has closed it.
  if (known->openings == 1) {
    (void)memory.remove(address);
  } else {
    memory.update(address, [](Allocation& found) { --found.openings; });
  }
  lock.unlock();
  const Route owner = route_of(*known);
  const CUresult result = forward_cuIpcCloseMemHandle(address, &owner);
  if (rcuda::api::is_gone(result)) return result;
  // The worker did not close the memory, so count the opening again. Other threads may have opened
  // or closed the memory meanwhile.
  lock.lock();
  if (const auto now = memory.find(address)) {
    memory.update(address, [](Allocation& found) { ++found.openings; });
  } else {
    Allocation still_open = *known;
    still_open.openings = 1;
    (void)memory.add(std::move(still_open));
  }
  return result;
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuIpcOpenEventHandle(event, handle));
  auto* opened = find<Event>(*event);
  opened->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  opened->state.leave_to_worker();
  return CUDA_SUCCESS;
}

}  // extern "C"
