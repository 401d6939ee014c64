// cuDeviceRegisterAsyncNotification: accepted, as by a driver whose device sends no notifications.
#include "common/cuda/notifications.h"

#include <cuda.h>

#include "client/process/process.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

CUresult check_device(CUdevice ordinal) {
  const Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  return process.device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
using rcuda::cuda::Notifications;

extern "C" {

CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callback, void*,
                                           CUasyncCallbackHandle* handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_device(device));
  return Notifications::get().add(device, callback, handle);
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_device(device));
  return Notifications::get().remove(device, handle);
}

}  // extern "C"
