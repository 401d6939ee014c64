// Memory of NCCL, and its registration with communicators.
#include <map>
#include <unordered_map>
#include <utility>

#include "client/nccl/communicator.h"
#include "client/nccl/forwarded.h"
#include "client/nccl/group.h"
#include "client/nccl/library.h"
#include "client/nccl/windows.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"

namespace rcuda::client::nccl {
namespace {

struct Memory {
  Mutex mutex;
  // The mappings of ncclMemAlloc: size by address.
  std::unordered_map<CUdeviceptr, size_t> mapped RCUDA_GUARDED_BY(mutex);
  // The program's address of each window, by the worker's handle of the window. Two workers may
  // return the same handle.
  std::map<std::pair<Session*, void*>, void*> windows RCUDA_GUARDED_BY(mutex);
};

Memory& memory() {
  static auto* const made = new Memory;
  return *made;
}

CUmemAllocationProp properties_on(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int gpudirect = 0;
  (void)cuDeviceGetAttribute(&gpudirect,
                             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
  properties.allocFlags.gpuDirectRDMACapable = gpudirect != 0;
  return properties;
}

// Maps memory with a shareable handle, so that NCCL can share it with other ranks. All devices of
// the server that can reach the memory may access it.
CUresult map_memory(CUdevice device, size_t bytes, CUdeviceptr* address, size_t* mapped) {
  const CUmemAllocationProp properties = properties_on(device);
  size_t step = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(
      cuMemGetAllocationGranularity(&step, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  *mapped = (bytes + step - 1) / step * step;
  CUmemGenericAllocationHandle handle = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(cuMemCreate(&handle, *mapped, &properties, 0));
  CUresult result = cuMemAddressReserve(address, *mapped, step, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = cuMemMap(*address, *mapped, 0, handle, 0);
    if (result != CUDA_SUCCESS) (void)cuMemAddressFree(*address, *mapped);
  }
  (void)cuMemRelease(handle);  // the mapping keeps the memory
  if (result != CUDA_SUCCESS) return result;
  const Session* const session = Process::get().device(device)->session;
  for (size_t other = 0; other < Process::get().device_count(); ++other) {
    const auto ordinal = static_cast<CUdevice>(other);
    if (Process::get().device(ordinal)->session != session) continue;
    int can = ordinal == device;
    if (!can) (void)cuDeviceCanAccessPeer(&can, ordinal, device);
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {ordinal}},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (can) result = cuMemSetAccess(*address, *mapped, &access, 1);
    if (result != CUDA_SUCCESS) break;
  }
  if (result != CUDA_SUCCESS) {
    (void)cuMemUnmap(*address, *mapped);
    (void)cuMemAddressFree(*address, *mapped);
  }
  return result;
}

}  // namespace

Session* session_of_window(void* window) {
  const CudaResult<Route> current = find_current_route();
  Session* found = nullptr;
  MutexLock lock(memory().mutex);
  for (const auto& [key, address] : memory().windows) {
    if (key.second != window) continue;
    if (!found || (current && key.first == current->session)) found = key.first;
  }
  return found;
}

int ncclMemAlloc(void** address, size_t bytes) {
  if (!address || bytes == 0) return kInvalidArgument;
  if (!open_library().ok()) return kSystemError;
  const CudaResult<Route> place = find_place();
  if (!place) return result_of(place.error());
  CUdeviceptr mapped_at = 0;
  size_t mapped = 0;
  const CUresult result =
      map_memory(static_cast<CUdevice>(place->device), bytes, &mapped_at, &mapped);
  if (result != CUDA_SUCCESS) return kCudaError;
  MutexLock lock(memory().mutex);
  memory().mapped[mapped_at] = mapped;
  *address = reinterpret_cast<void*>(mapped_at);
  return kSuccess;
}

int ncclMemFree(void* address) {
  if (!address) return kSuccess;
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  const auto mapping = [at] {
    MutexLock lock(memory().mutex);
    return memory().mapped.extract(at);
  }();
  if (!mapping) return kInvalidArgument;
  const size_t bytes = mapping.mapped();
  if (cuMemUnmap(at, bytes) != CUDA_SUCCESS) {
    MutexLock lock(memory().mutex);
    memory().mapped[at] = bytes;  // still mapped: the program may try again
    return kCudaError;
  }
  return cuMemAddressFree(at, bytes) == CUDA_SUCCESS ? kSuccess : kCudaError;
}

int ncclCommRegister(void* comm, void* address, size_t bytes, void** handle) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !address || !handle) return kInvalidArgument;
  Step step = step_on(*communicator, Verb::kRegister);
  step.call.source = reinterpret_cast<uint64_t>(address);
  step.call.count = bytes;
  step.answered = [handle](const Answer& answer) {
    *handle = reinterpret_cast<void*>(answer.value);
    return kSuccess;
  };
  communicator->has_registrations = true;
  return submit_at_once(std::move(step));
}

int ncclCommDeregister(void* comm, void* handle) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return kInvalidArgument;
  Step step = step_on(*communicator, Verb::kDeregister);
  step.call.source = reinterpret_cast<uint64_t>(handle);
  return submit_at_once(std::move(step));
}

// All ranks register together, and may do so in a group.
int ncclCommWindowRegister(void* comm, void* address, size_t bytes, void** window, int flags) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !window) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, Verb::kRegisterWindow);
  step.call.source = reinterpret_cast<uint64_t>(address);
  step.call.count = bytes;
  step.call.value = flags;
  step.answered = [window, address, session = communicator->session](const Answer& answer) {
    *window = reinterpret_cast<void*>(answer.value);
    MutexLock lock(memory().mutex);
    memory().windows[{session, *window}] = address;
    return kSuccess;
  };
  communicator->has_registrations = true;
  return submit(std::move(step));
}

int ncclCommWindowDeregister(void* comm, void* window) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, Verb::kDeregisterWindow);
  step.call.source = reinterpret_cast<uint64_t>(window);
  {
    MutexLock lock(memory().mutex);
    memory().windows.erase({communicator->session, window});
  }
  return submit(std::move(step));
}

int ncclWinGetUserPtr(void* comm, void* window, void** address) {
  const Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !address) return kInvalidArgument;
  MutexLock lock(memory().mutex);
  const auto found = memory().windows.find({communicator->session, window});
  if (found == memory().windows.end()) return kInvalidArgument;
  *address = found->second;
  return kSuccess;
}

}  // namespace rcuda::client::nccl
