// Kernel parameters: from the application's pointers, or its `extra` buffer, to the bytes that the
// kernel wants.
#pragma once

#include <cstddef>
#include <span>

#include <cuda.h>

#include "client/calls/functions.h"

namespace rcuda::client {

// How many bytes the parameters take. CUDA_ERROR_INVALID_VALUE for parameters
// given both ways, a malformed `extra`, or more bytes than a launch may have.
CUresult parameter_bytes(const FunctionInfo& info, void** parameters, void** extra, size_t* bytes);
// Writes them, and zeros up to the end of `out`, which holds at least that many.
CUresult pack_parameters(const FunctionInfo& info, void** parameters, void** extra,
                         std::span<std::byte> out);

}  // namespace rcuda::client
