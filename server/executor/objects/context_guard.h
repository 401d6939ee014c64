// ContextGuard: makes a context current on this thread. The destructor makes the previous context
// current again.
//
// Use it on one thread. Nothing blocks. Errors: result(); after an error the current context is
// unchanged.
#pragma once

#include <cuda.h>

#include "api/driver_table.h"

namespace rcuda::server {

class ContextGuard {
 public:
  // The table outlives this object.
  ContextGuard(const api::DriverTable& driver, CUcontext context)
      : driver_(driver), result_(driver.cuCtxPushCurrent_v2(context)) {}
  ~ContextGuard() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent_v2(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

  CUresult result() const { return result_; }
  bool ok() const { return result_ == CUDA_SUCCESS; }

 private:
  const api::DriverTable& driver_;
  const CUresult result_;
};

// The primary context of one of the session's devices. Asks the driver, because a reset may change
// the context. Null if the driver does not report it. The worker holds a reference, so the release
// does not end the context.
inline CUcontext primary_context(const api::DriverTable& driver, CUdevice device) {
  CUcontext context = nullptr;
  if (driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  driver.cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

}  // namespace rcuda::server
