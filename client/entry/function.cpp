// Functions and kernels: their attributes, settings, parameters and state.

#include <algorithm>
#include <climits>

#include <cuda.h>

#include "client/code/functions.h"
#include "client/code/module_images.h"
#include "client/objects/arena.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/cuda/known_values.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

CUresult read_attribute(const FunctionInfo& info, int which, int* value) {
  if (!value || which < 0 || which >= static_cast<int>(info.attributes.size())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int32_t known = info.attributes[static_cast<size_t>(which)].load(std::memory_order_relaxed);
  if (known == INT32_MIN) return CUDA_ERROR_INVALID_VALUE;
  *value = known;
  return CUDA_SUCCESS;
}

// Checks for the errors that a driver returns in the call. The setting itself is posted.
CUresult check_setting(const FunctionInfo& info, const Device& device, int which, int value) {
  const auto of_function = [&](CUfunction_attribute attribute) {
    return info.attributes[attribute].load(std::memory_order_relaxed);
  };
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
      const int most = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
      const int taken = of_function(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
      return value < 0 || value > most - taken ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // the attribute describes the code and cannot be set
  }
}

struct KernelOn {
  Kernel* kernel;
  Route route;
  FunctionInfo* info;
};

// Finds a kernel and its data on a device. Needs no current context.
CudaResult<KernelOn> kernel_on(CUkernel handle, CUdevice ordinal) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(ordinal, &device));
  auto* kernel = find<Kernel>(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  const Route route = route_of(*device->primary);
  FunctionInfo* info;
  RCUDA_RETURN_IF_CUDA_ERROR(info_on(*kernel, route, &info));
  return KernelOn{kernel, route, info};
}

// Returns the route of a function, which belongs to a context. For a kernel that is passed as a
// function, this is the route of the current context.
CudaResult<Route> route_of_callable(CUfunction handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (const auto* function = find<Function>(handle)) return route_of(*function);
  const auto current = find_current_route();
  return current || find<Kernel>(handle) ? current : CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_callable(CUfunction handle, Callable* callable) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, route_of_callable(handle));
  return resolve_callable(handle, route, callable);
}

// The client checks the value, because the command is posted: the worker's error would arrive late.
template <typename Configuration>
CUresult check_configuration(CUfunction handle, Configuration value) {
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(find_callable(handle, &callable));
  return rcuda::cuda::is_known(value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, route_of_callable(handle));
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(handle, route, &callable));
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  const Kernel* kernel = callable.is_kernel ? find<Kernel>(handle) : find<Function>(handle)->kernel;
  return kernel ? library_module(kernel->library, route, module)
                : forward_cuFuncGetModule(module, handle);
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_configuration(handle, config));
  return forward_cuFuncSetCacheConfig(handle, config);
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_configuration(handle, config));
  return forward_cuFuncSetSharedMemConfig(handle, config);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!rcuda::cuda::is_known(config)) return CUDA_ERROR_INVALID_VALUE;
  return forward_cuKernelSetCacheConfig(kernel, config, device);
}

// Unlike most calls, this call does not accept a kernel as a function (580 on an H100).
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(find_callable(handle, &callable));
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  if (callable.is_kernel) return CUDA_ERROR_INVALID_HANDLE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;  // the worker has reported the function's data
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle) {
  if (find<Kernel>(handle)) return CUDA_ERROR_INVALID_HANDLE;  // a kernel is not accepted here
  Callable callable;
  return find_callable(handle, &callable);
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction handle) {
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(find_callable(handle, &callable));
  // Like cuFuncIsLoaded() and cuFuncLoad(), this call does not accept a kernel as a function.
  return callable.is_kernel ? CUDA_ERROR_INVALID_HANDLE
                            : read_attribute(*callable.info, which, value);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, route_of_callable(handle));
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(handle, route, &callable));
  const Device& device = *Process::get().device(static_cast<CUdevice>(route.device));
  RCUDA_RETURN_IF_CUDA_ERROR(check_setting(*callable.info, device, which, value));
  const CUresult result = forward_cuFuncSetAttribute(handle, which, value);
  if (result == CUDA_SUCCESS) note_attribute(*callable.info, which, value);
  return result;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel handle,
                              CUdevice dev) {
  RCUDA_ASSIGN_OR_RETURN(const KernelOn& found, kernel_on(handle, dev));
  return read_attribute(*found.info, which, value);
}

CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel handle,
                              CUdevice dev) {
  RCUDA_ASSIGN_OR_RETURN(const KernelOn& found, kernel_on(handle, dev));
  RCUDA_RETURN_IF_CUDA_ERROR(check_setting(*found.info, *Process::get().device(dev), which, value));
  const CUresult result = forward_cuKernelSetAttribute(which, value, handle, dev);
  if (result == CUDA_SUCCESS) note_attribute(*found.kernel, found.route, which, value);
  return result;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(find_callable(handle, &callable));
  if (!offset || index >= callable.info->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = callable.info->parameters[index].offset_bytes;
  if (bytes) *bytes = callable.info->parameters[index].size_bytes;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* bytes) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(handle), index, offset, bytes);
}

}  // extern "C"
