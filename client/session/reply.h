// A worker's reply, and the error of a lost session.
#pragma once

#include <cuda.h>

#include "common/wire/channel.h"

namespace rcuda::client {

// The result of every call that needs the worker, after its session is lost or has ended. The CUDA
// runtime's text for this error is "all CUDA-capable devices are busy or unavailable".
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

using wire::Reply;

}  // namespace rcuda::client
