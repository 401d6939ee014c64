// A libcuda.so.1 that defines five functions itself, for exports_test.cpp. All other functions have
// the generated definitions.
#include <cuda.h>

#include "common/interop/default_stream.h"

namespace {
CUstream last_stream;
}

extern "C" {

CUresult cuStreamSynchronize(CUstream hStream) {
  last_stream = hStream;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent) { return CUDA_ERROR_CONTEXT_IS_DESTROYED; }

CUresult cuMemcpy(CUdeviceptr, CUdeviceptr, size_t) {
  return rcuda::interop::per_thread_default_stream() ? CUDA_ERROR_ALREADY_MAPPED : CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void**) {
  last_stream = config->hStream;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  *pctx = reinterpret_cast<CUcontext>(last_stream);
  return CUDA_SUCCESS;
}

}  // extern "C"
