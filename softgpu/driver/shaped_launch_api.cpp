// The launch interface of CUDA 3: a program sets the shape and the parameters of a function, and a
// launch of the function is a cuLaunchKernel with them.
#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/module.h"

using namespace softgpu::driver;
using rcuda::cuda::ShapedLaunch;

namespace {

CUresult find_function(CUfunction handle, std::shared_ptr<Function>* function) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (kernel_from_handle(reinterpret_cast<CUkernel>(handle))) return CUDA_ERROR_INVALID_HANDLE;
  return function_in_context(handle, *context, function);
}

CUresult set_parameter(CUfunction handle, int offset, const void* value, size_t bytes) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  return function->shaped().set_parameter(offset, value, bytes);
}

CUresult launch_grid(CUfunction handle, int width, int height, CUstream stream) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  ShapedLaunch::Settings settings = function->shaped().settings();
  size_t bytes = settings.parameters.size();
  settings.parameters.resize(bytes + 1);  // a buffer even without parameters
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, settings.parameters.data(),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(handle, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                        settings.block[0], settings.block[1], settings.block[2],
                        settings.shared_bytes, stream, nullptr, extra);
}

CUresult check_settings(Function& function, const ShapedLaunch::Settings& settings) {
  return check_launch(function, {{1, 1, 1},
                                 {settings.block[0], settings.block[1], settings.block[2]},
                                 settings.shared_bytes});
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuFuncSetBlockShape(CUfunction handle, int x, int y, int z) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  ShapedLaunch::Settings settings;
  settings.block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
  if (CUresult result = check_settings(*function, settings)) return result;
  function->shaped().set_block(settings.block);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetSharedSize(CUfunction handle, unsigned int bytes) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  ShapedLaunch::Settings settings;
  settings.shared_bytes = bytes;
  if (CUresult result = check_settings(*function, settings)) return result;
  function->shaped().set_shared_bytes(bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuParamSetSize(CUfunction handle, unsigned int bytes) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  return function->shaped().set_size(bytes);
}

CUresult CUDAAPI cuParamSeti(CUfunction handle, int offset, unsigned int value) {
  return set_parameter(handle, offset, &value, sizeof value);
}

CUresult CUDAAPI cuParamSetf(CUfunction handle, int offset, float value) {
  return set_parameter(handle, offset, &value, sizeof value);
}

CUresult CUDAAPI cuParamSetv(CUfunction handle, int offset, void* value, unsigned int bytes) {
  return set_parameter(handle, offset, value, bytes);
}

CUresult CUDAAPI cuLaunch(CUfunction handle) { return launch_grid(handle, 1, 1, nullptr); }

CUresult CUDAAPI cuLaunchGrid(CUfunction handle, int width, int height) {
  return launch_grid(handle, width, height, nullptr);
}

CUresult CUDAAPI cuLaunchGridAsync(CUfunction handle, int width, int height, CUstream stream) {
  return launch_grid(handle, width, height, stream);
}

}  // extern "C"
