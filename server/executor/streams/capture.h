// What a stream captures. To query a stream in capture, or the legacy stream beside it, would end
// the capture, so callers ask this first. Executor thread only; nothing blocks.
#pragma once

#include <cuda.h>

#include "api/driver_table.h"

namespace rcuda::server {

// CUDA_SUCCESS if the stream does not capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if it does,
// else the driver's error.
CUresult refuse_capture(const api::DriverTable& driver, CUstream stream);

// The graph that the stream is captured into; null if it does not capture.
CUgraph captured_into(const api::DriverTable& driver, CUstream stream);

}  // namespace rcuda::server
