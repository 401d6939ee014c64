// What an exported function returns when an exception reaches it: none may get any further, because
// its caller is C, or C++ with a runtime of its own. Any thread.
#pragma once

#include <exception>

#include <cuda.h>

namespace rcuda::client {

// CUDA_ERROR_OUT_OF_MEMORY where memory was not to be had, be it that the arguments ask for more
// than there can be; CUDA_ERROR_UNKNOWN and a line in the log for anything else. `function` is the
// exported function's name.
CUresult thrown(const char* function, const std::exception& exception) noexcept;

}  // namespace rcuda::client
