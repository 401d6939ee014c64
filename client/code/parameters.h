// Kernel parameters: packs the application's pointers or its `extra` buffer into the kernel's
// parameter layout.
#pragma once

#include <cstddef>
#include <span>

#include <cuda.h>

#include "client/code/functions.h"

namespace rcuda::client {

// Gets the size of the packed parameters. An `extra` buffer may be smaller than the kernel's
// parameters, as in NCCL: a driver treats the missing bytes as zeros. Returns
// CUDA_ERROR_INVALID_VALUE if both `parameters` and `extra` have parameters, or if both are null
// although the kernel has parameters. It returns the same error if `extra` is malformed, or has
// more bytes than a launch may have.
CUresult parameter_bytes(const FunctionInfo& info, void** parameters, void** extra, size_t* bytes);
// Writes the parameters to `out` and fills the rest of `out` with zeros. `out` has at least the
// size that parameter_bytes() returned.
CUresult pack_parameters(const FunctionInfo& info, void** parameters, void** extra,
                         std::span<std::byte> out);

}  // namespace rcuda::client
