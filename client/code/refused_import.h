// Logs a warning, once per process, that says why memory of another process could not be imported
// and how to fix it. Frameworks show only the error code. Any thread may call; nothing blocks.
#pragma once

#include <cuda.h>

namespace rcuda::client {

// `result`: the worker's result for a handle that another program under rcuda made. Returns
// `result` unchanged.
CUresult explain_import(CUresult result);

}  // namespace rcuda::client
