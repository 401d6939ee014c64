// The capture state of a stream. cuStreamQuery() would invalidate a capture if it queried a stream
// in capture, or the legacy stream during a capture. These functions find out whether a stream is
// in capture, and leave the capture valid. Executor thread only; nothing blocks.
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
