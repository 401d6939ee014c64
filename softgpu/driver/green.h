// Green contexts (context.h) and device resources: parts of a device's multiprocessors, by count. A
// part is only a number: its kernels run on the same threads of the process as all other kernels.
//
// Any thread; nothing blocks. green_api.cpp defines cuDev*Resource*; context_api.cpp defines
// cuGreenCtx*.
#pragma once

#include <cuda.h>

#include "softgpu/driver/context.h"

namespace softgpu::driver {

// Null unless the context is green.
inline CUgreenCtx green_handle(Context& context) {
  return context.is_green() ? reinterpret_cast<CUgreenCtx>(context.handle()) : nullptr;
}

// The number of multiprocessors of a descriptor, or of the whole device if `desc` is null.
// CUDA_ERROR_INVALID_VALUE for an unknown descriptor, CUDA_ERROR_INVALID_DEVICE for a descriptor of
// another device.
CUresult multiprocessors_of(CUdevResourceDesc desc, const Device& device, int* count);

// Defined in stream_api.cpp. A stream of a green context is non-blocking whatever the flags.
CUresult create_stream_in(Context& context, CUstream* stream, unsigned flags, int priority);

}  // namespace softgpu::driver
