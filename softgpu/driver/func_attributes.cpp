// Attributes, cache configuration and parameter info of functions (cuFunc*) and of kernels
// (cuKernel*).
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include <cuda.h>

#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/occupancy.h"
#include "softgpu/exec/program.h"

using namespace softgpu::driver;

namespace {

// Accepts a function, which needs no current context, or a CUkernel cast to CUfunction. A kernel is
// replaced by its function in the current context.
CUresult find_function(CUfunction handle, std::shared_ptr<Function>* function) {
  if (CUresult result = check_initialized()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = function_from_handle(handle, function)) return result;
  return (*function)->context().sticky();
}

// Sets `*function` to the kernel's function in a context of the device, because a kernel has no
// code outside of a context. The context is the current context if it is alive and on the device,
// otherwise the primary context, alive or not.
CUresult find_kernel(CUkernel handle, CUdevice ordinal, std::shared_ptr<Kernel>* kernel,
                     std::shared_ptr<Function>* function) {
  if (CUresult result = check_initialized()) return result;
  Device* device = device_at(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *kernel = kernel_from_handle(handle);
  if (*kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Context> context = current_context_shared();
  if (context == nullptr || !context->alive() || &context->device() != device) {
    context = device->primary_shared();
  }
  if (context->alive()) {
    if (CUresult result = context->sticky()) return result;
  }
  return (*kernel)->function_in(*context, function);
}

int or_zero(const std::atomic<int>& setting) { return std::max(setting.load(), 0); }

// `settings`: those of the function or of its kernel.
CUresult get_attribute(const Function& function, const FunctionSettings& settings,
                       CUfunction_attribute attribute, int* value) {
  const softgpu::exec::Kernel& kernel = function.kernel();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(kernel.max_threads_per_block);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(kernel.static_shared_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = static_cast<int>(kernel.const_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(kernel.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = static_cast<int>(registers_per_thread(kernel));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = static_cast<int>(kernel.ptx_version);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = kComputeCapability;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(max_dynamic_shared_bytes(kernel, settings));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = settings.preferred_carveout.load();
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      *value = or_zero(settings.cluster_width);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      *value = or_zero(settings.cluster_height);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *value = or_zero(settings.cluster_depth);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = or_zero(settings.non_portable_cluster_size);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = or_zero(settings.cluster_scheduling);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult set_attribute(FunctionSettings& settings, const softgpu::exec::Kernel& kernel,
                       CUfunction_attribute attribute, int value) {
  auto store = [value](std::atomic<int>& setting, int least, int most) {
    if (value < least || value > most) return CUDA_ERROR_INVALID_VALUE;
    setting.store(value);
    return CUDA_SUCCESS;
  };
  constexpr int kAny = 0x7fffffff;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return store(
          settings.max_dynamic_shared_bytes, 0,
          static_cast<int>(kMaxSharedBytesPerBlock) - static_cast<int>(kernel.static_shared_bytes));
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return store(settings.preferred_carveout, CU_SHAREDMEM_CARVEOUT_DEFAULT,
                   CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return store(settings.cluster_width, 0, kAny);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return store(settings.cluster_height, 0, kAny);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return store(settings.cluster_depth, 0, kAny);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return store(settings.non_portable_cluster_size, 0, 1);
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return store(settings.cluster_scheduling, CU_CLUSTER_SCHEDULING_POLICY_DEFAULT,
                   CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

bool valid_cache_config(CUfunc_cache config) {
  return config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL;
}

CUresult parameter_info(const softgpu::exec::Kernel& kernel, size_t index, size_t* offset,
                        size_t* size) {
  if (offset == nullptr || index >= kernel.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel.parameters[index].offset_bytes;
  if (size != nullptr) *size = kernel.parameters[index].size_bytes;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  std::shared_ptr<Function> function;
  // Unlike the other calls, this call does not accept a kernel in place of its function.
  if (kernel_from_handle(reinterpret_cast<CUkernel>(hfunc))) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = find_function(hfunc, &function)) return result;
  return get_attribute(*function, function->settings(), attrib, pi);
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(hfunc, &function)) return result;
  return set_attribute(function->settings(), function->kernel(), attrib, value);
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(hfunc, &function)) return result;
  if (!valid_cache_config(config)) return CUDA_ERROR_INVALID_VALUE;
  function->settings().cache_config.store(config);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(hfunc, &function)) return result;
  return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                            : CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                                    size_t* paramSize) {
  if (func == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(func, &function)) return result;
  return parameter_info(function->kernel(), paramIndex, paramOffset, paramSize);
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                                      size_t* paramSize) {
  if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const std::shared_ptr<Kernel> found = kernel_from_handle(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> function;
  if (CUresult result = found->function_in(*context, &function)) return result;
  return parameter_info(function->kernel(), paramIndex, paramOffset, paramSize);
}

CUresult CUDAAPI cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                                      CUdevice dev) {
  std::shared_ptr<Kernel> found;
  std::shared_ptr<Function> function;
  if (CUresult result = find_kernel(kernel, dev, &found, &function)) return result;
  return get_attribute(*function, found->settings(dev), attrib, pi);
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                      CUdevice dev) {
  std::shared_ptr<Kernel> found;
  std::shared_ptr<Function> function;
  if (CUresult result = find_kernel(kernel, dev, &found, &function)) return result;
  if (CUresult result = set_attribute(found->settings(dev), function->kernel(), attrib, val)) {
    return result;
  }
  found->pass_on_settings(dev);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  std::shared_ptr<Kernel> found;
  std::shared_ptr<Function> function;
  if (CUresult result = find_kernel(kernel, dev, &found, &function)) return result;
  if (!valid_cache_config(config)) return CUDA_ERROR_INVALID_VALUE;
  found->settings(dev).cache_config.store(config);
  found->pass_on_settings(dev);
  return CUDA_SUCCESS;
}

}  // extern "C"
