// Stream memory operations (cuStreamWaitValue32 and similar): checked at the call, executed later.
//
// A wait polls its word on the stream's thread, first without a pause, then with pauses of a
// fraction of a millisecond. It ends when the condition holds, when the context fails or is
// destroyed, or when the memory is released (which fails the context with
// CUDA_ERROR_ILLEGAL_ADDRESS).
#pragma once

#include <span>

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::driver {

// CUDA_ERROR_INVALID_VALUE for unknown operations or flags, and for addresses that are misaligned
// or that the context's kernels may not access; CUDA_ERROR_NOT_SUPPORTED for flushes of remote
// writes, as on an H200.
CUresult check_mem_ops(Context& context, std::span<const CUstreamBatchMemOpParams> operations);

CUresult execute_mem_ops(Context& context, const MemOpOperation& operation);

}  // namespace softgpu::driver
