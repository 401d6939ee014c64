// Copies and fills: validation when they are asked for, execution when a stream reaches them.
//
// Every copy, of whatever shape, is a CUDA_MEMCPY3D_PEER whose memory types are HOST, DEVICE or
// ARRAY by the time it is queued; resolve_copy() turns unified addresses into one or the other and
// checks that the ranges exist. Host memory that no allocation covers is pageable: such copies are
// made before the call returns, as the real driver does, small ones to the device excepted, whose
// source is copied at the call and which run in stream order. Any thread. execute_* run on streams'
// threads and wait there when the link model is on.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::driver {

// Pageable sources up to this size are staged instead of waited for, as the real driver documents.
inline constexpr size_t kStagedBytes = 64 * 1024;

// Resolves unified memory types and checks the copy. CUDA_ERROR_INVALID_VALUE for ranges that are
// not wholly allocated, shapes that overflow and pitches that are too small;
// CUDA_ERROR_INVALID_HANDLE for arrays that do not exist. Used for graph nodes too.
CUresult resolve_copy(CUDA_MEMCPY3D_PEER* shape);
// Both ends, before that.
inline bool is_unified(const CUDA_MEMCPY3D_PEER& shape) {
  return shape.srcMemoryType == CU_MEMORYTYPE_UNIFIED &&
         shape.dstMemoryType == CU_MEMORYTYPE_UNIFIED;
}
// Whether host memory takes part that no allocation covers.
bool uses_pageable_memory(const CopyOperation& copy);
// Reads the source of a resolved copy now, so that the caller may change it at once.
CUresult stage_source(CopyOperation* operation);
// Holds the memory of a resolved copy. CUDA_ERROR_ILLEGAL_ADDRESS when it is gone.
CUresult hold_memory(CopyOperation* operation);
// The same for a copy that comes behind what its stream has, which may be the memory's free: that
// would wait for the copy.
CUresult hold_memory_to_queue(CopyOperation* operation);
CUresult check_fill(const FillOperation& fill);

// A copy between two addresses, whatever they are; unresolved.
CUDA_MEMCPY3D_PEER linear_copy(CUdeviceptr destination, CUdeviceptr source, size_t bytes);

}  // namespace softgpu::driver
