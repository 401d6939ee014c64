#include "server/executor/calls/call.h"

#include "api/driver_table.h"

namespace rcuda::server {

void* Objects::find(wire::Kind kind, wire::ObjectId id, bool required) {
  void* handle = nullptr;
  if (failed()) return handle;
  if (id == 0 && required) {
    fix(CUDA_ERROR_INVALID_HANDLE);
  } else {
    fix(lookup(executor_, kind, id, &handle));
  }
  return handle;
}

CUfunction Objects::find_function(const FunctionId& id) {
  // The driver takes a CUkernel where a CUfunction is expected.
  const wire::Kind kind = id.is_kernel != 0 ? wire::Kind::kKernel : wire::Kind::kFunction;
  return static_cast<CUfunction>(find(kind, id.id, true));
}

CUdevice Objects::find_device(uint32_t ordinal) {
  CUdevice device = 0;
  if (!failed()) fix(lookup_device(executor_, ordinal, &device));
  return device;
}

void leave_created_context(Executor& executor, CUresult result) {
  CUcontext created = nullptr;
  const auto pop = driver(executor).cuCtxPopCurrent_v2;
  if (result == CUDA_SUCCESS && pop != nullptr) (void)pop(&created);
}

CUresult location_from_wire(CUmemLocation& location, Executor& executor) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
  CUdevice device = 0;
  const CUresult result = lookup_device(executor, static_cast<uint32_t>(location.id), &device);
  location.id = device;
  return result;
}

CUresult devices_from_wire(unsigned& mask, Executor& executor) {
  unsigned driver = 0;
  for (uint32_t ordinal = 0; ordinal < 32; ++ordinal) {
    if ((mask >> ordinal & 1) == 0) continue;
    CUdevice device = 0;
    if (lookup_device(executor, ordinal, &device) != CUDA_SUCCESS || device >= 32) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    driver |= 1u << device;
  }
  mask = driver;
  return CUDA_SUCCESS;
}

void callback_from_wire(CUhostFn& function, void*& argument, Executor& executor) {
  const HostFunction host = host_function(executor, reinterpret_cast<uintptr_t>(argument));
  function = host.function;
  argument = host.argument;
}

void location_to_wire(CUmemLocation& location, Executor& executor) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    location.id = device_ordinal(executor, location.id);
  }
}

}  // namespace rcuda::server
