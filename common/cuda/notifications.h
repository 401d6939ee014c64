// The callbacks of cuDeviceRegisterAsyncNotification. rcuda never calls them: only a device whose
// memory a hypervisor shrinks sends notifications (CU_ASYNC_NOTIFICATION_TYPE_OVER_BUDGET).
//
// Any thread; nothing blocks.
#pragma once

#include <cstdint>
#include <map>

#include <cuda.h>

#include "common/base/mutex.h"

namespace rcuda::cuda {

class Notifications {
 public:
  // Never destroyed: programs unregister in static destructors.
  static Notifications& get() {
    static auto* instance = new Notifications;
    return *instance;
  }

  CUresult add(CUdevice device, CUasyncCallback callback, CUasyncCallbackHandle* handle) {
    if (!callback || !handle) return CUDA_ERROR_INVALID_VALUE;
    MutexLock lock(mutex_);
    next_ += 16;
    *handle = reinterpret_cast<CUasyncCallbackHandle>(next_);
    devices_.emplace(*handle, device);
    return CUDA_SUCCESS;
  }

  CUresult remove(CUdevice device, CUasyncCallbackHandle handle) {
    MutexLock lock(mutex_);
    const auto known = devices_.find(handle);
    if (known == devices_.end() || known->second != device) return CUDA_ERROR_INVALID_VALUE;
    devices_.erase(known);
    return CUDA_SUCCESS;
  }

 private:
  Mutex mutex_;
  std::map<CUasyncCallbackHandle, CUdevice> devices_ RCUDA_GUARDED_BY(mutex_);
  uintptr_t next_ RCUDA_GUARDED_BY(mutex_) = 0;  // handles are never reused
};

}  // namespace rcuda::cuda
