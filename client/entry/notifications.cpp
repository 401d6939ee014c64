// cuDeviceRegisterAsyncNotification: the registration succeeds, but no notification is ever sent,
// as with a driver whose device sends none.
#include "common/cuda/notifications.h"

#include <cuda.h>

#include "client/process/process.h"
#include "common/cuda/return_if_error.h"

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
using rcuda::cuda::Notifications;

extern "C" {

CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callback, void*,
                                           CUasyncCallbackHandle* handle) {
  Device* found;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(device, &found));
  return Notifications::get().add(device, callback, handle);
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle handle) {
  Device* found;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(device, &found));
  return Notifications::get().remove(device, handle);
}

}  // extern "C"
