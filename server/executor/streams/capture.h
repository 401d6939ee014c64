// The capture state of a stream. Querying a stream in capture, or the legacy stream during a
// capture, would invalidate the capture, so callers call these functions first. Executor thread
// only; nothing blocks.
#pragma once

#include <cuda.h>

#include "api/driver_table.h"

namespace rcuda::server {

// CUDA_SUCCESS if the stream is not in capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if it is,
// otherwise the driver's error.
CUresult refuse_capture(const api::DriverTable& driver, CUstream stream);

// cuStreamQuery() of a stream that may be in capture. Errors as of refuse_capture().
CUresult query_stream(const api::DriverTable& driver, CUstream stream);

// The graph that the stream is captured into; null if it is not in capture.
CUgraph captured_into(const api::DriverTable& driver, CUstream stream);

}  // namespace rcuda::server
