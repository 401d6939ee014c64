// The launch interface of CUDA 3. The client keeps the shape and the parameters of each function
// (FunctionInfo::shaped); a launch calls cuLaunchKernel with them. CUDA does not define whether the
// application's own cuLaunchKernel changes the stored shape and parameters; here it does not.
#include <cuda.h>

#include "client/code/functions.h"
#include "client/code/launch_shape.h"
#include "client/objects/arena.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// The function that a call names, with its data and route.
struct Subject {
  Route route;
  FunctionInfo* info;

  CUresult check(const cuda::ShapedLaunch::Settings& settings) const {
    const auto& block = settings.block;
    return check_shape({{1, 1, 1}, {block[0], block[1], block[2]}, settings.shared_bytes},
                       *Process::get().device(static_cast<CUdevice>(route.device)), *info);
  }
};

CudaResult<Subject> find_subject(CUfunction function) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!find<Function>(function)) return CUDA_ERROR_INVALID_HANDLE;  // a kernel is refused, too
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(function, route, &callable));
  return Subject{route, callable.info};
}

CUresult set_parameter(CUfunction function, int offset, const void* value, size_t bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Subject& subject, find_subject(function));
  return subject.info->shaped.set_parameter(offset, value, bytes);
}

CUresult launch_grid(CUfunction function, int width, int height, CUstream stream) {
  RCUDA_ASSIGN_OR_RETURN(const Subject& subject, find_subject(function));
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  cuda::ShapedLaunch::Settings settings = subject.info->shaped.settings();
  const size_t taken = subject.info->parameter_bytes;
  if (settings.parameters.size() > taken) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  // Parameter bytes beyond the size that cuParamSetSize has set are zero.
  settings.parameters.resize(taken);
  size_t bytes = taken;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, settings.parameters.data(),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                        settings.block[0], settings.block[1], settings.block[2],
                        settings.shared_bytes, stream, nullptr, bytes ? extra : nullptr);
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  RCUDA_ASSIGN_OR_RETURN(const Subject& subject, find_subject(function));
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  rcuda::cuda::ShapedLaunch::Settings settings;
  settings.block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
  RCUDA_RETURN_IF_CUDA_ERROR(subject.check(settings));
  subject.info->shaped.set_block(settings.block);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction function, unsigned bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Subject& subject, find_subject(function));
  rcuda::cuda::ShapedLaunch::Settings settings;
  settings.shared_bytes = bytes;
  RCUDA_RETURN_IF_CUDA_ERROR(subject.check(settings));
  subject.info->shaped.set_shared_bytes(bytes);
  return CUDA_SUCCESS;
}

CUresult cuParamSetSize(CUfunction function, unsigned bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Subject& subject, find_subject(function));
  return subject.info->shaped.set_size(bytes);
}

CUresult cuParamSeti(CUfunction function, int offset, unsigned value) {
  return set_parameter(function, offset, &value, sizeof value);
}

CUresult cuParamSetf(CUfunction function, int offset, float value) {
  return set_parameter(function, offset, &value, sizeof value);
}

CUresult cuParamSetv(CUfunction function, int offset, void* value, unsigned bytes) {
  return set_parameter(function, offset, value, bytes);
}

CUresult cuLaunch(CUfunction function) { return launch_grid(function, 1, 1, nullptr); }

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  return launch_grid(function, width, height, nullptr);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch_grid(function, width, height, stream);
}

}  // extern "C"
