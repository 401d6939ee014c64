// Turns an exception in an exported function into the function's result. No exception may leave an
// exported function, because its caller is C, or C++ with its own runtime. Any thread.
#pragma once

#include <exception>

#include <cuda.h>

namespace rcuda::client {

// Returns CUDA_ERROR_OUT_OF_MEMORY if an allocation failed, even if the arguments requested more
// memory than can exist. For any other exception, logs a line and returns CUDA_ERROR_UNKNOWN.
// `function`: the name of the exported function.
CUresult thrown(const char* function, const std::exception& exception) noexcept;

}  // namespace rcuda::client
