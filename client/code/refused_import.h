// Says on the program's error output, once, why memory of another process could not be imported and
// what to do about it. Frameworks show only the error code. Any thread may call; nothing blocks.
#pragma once

#include <cuda.h>

namespace rcuda::client {

// `result`: of the worker, for a handle that a program of rcuda has made. Returns it unchanged.
CUresult explain_import(CUresult result);

}  // namespace rcuda::client
