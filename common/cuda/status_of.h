// Converts a CUresult to a Status. Any thread; nothing blocks.
#pragma once

#include <string>
#include <string_view>

#include <cuda.h>

#include "common/base/status.h"

namespace rcuda {

// `what`: the name of the driver call, for the message.
inline Status status_of(CUresult result, std::string_view what) {
  return result == CUDA_SUCCESS ? Status() : Status::from_cuda(result, std::string(what));
}

}  // namespace rcuda
