// Copies and fills: checked when they are requested, executed when a stream reaches them.
//
// Every copy, of any shape, is a CUDA_MEMCPY3D_PEER. When it is queued, its memory types are HOST,
// DEVICE or ARRAY: resolve_copy() resolves unified addresses and checks that the ranges exist. Host
// memory outside of all allocations is pageable. As with the real driver, a copy with pageable
// memory has ended when the call returns. Exception: for a small copy from pageable memory to the
// device, the call only reads the source, and the copy runs in stream order. Any thread. execute_*
// run on the thread that runs the stream, and wait there if the link model is on.
#pragma once

#include <cstddef>

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::driver {

class Device;

// Pageable sources of up to this size are staged; the call does not wait. CUDA documents this size.
inline constexpr size_t kStagedBytes = 64 * 1024;

// Resolves unified memory types and checks the copy. CUDA_ERROR_INVALID_VALUE if a range is not
// wholly allocated, a shape overflows or a pitch is too small; CUDA_ERROR_INVALID_HANDLE if an
// array does not exist. Also used for graph nodes.
CUresult resolve_copy(CUDA_MEMCPY3D_PEER* shape);
// Whether both ends were given as unified addresses. Call it before resolve_copy(), which replaces
// the memory types.
inline bool is_unified(const CUDA_MEMCPY3D_PEER& shape) {
  return shape.srcMemoryType == CU_MEMORYTYPE_UNIFIED &&
         shape.dstMemoryType == CU_MEMORYTYPE_UNIFIED;
}
// Whether the copy involves pageable memory: host memory outside of all allocations.
bool uses_pageable_memory(const CopyOperation& copy);
// Reads the source of a resolved copy now, so that the caller may change it after the call.
CUresult stage_source(CopyOperation* operation);
// Holds the memory of a resolved copy. CUDA_ERROR_ILLEGAL_ADDRESS if it no longer exists.
CUresult hold_memory(CopyOperation* operation);
// As hold_memory(), for a copy that is about to be queued. Does not hold memory whose free may
// already be queued: the copy would run after the free, and the free would wait for the copy (a
// deadlock).
CUresult hold_memory_to_queue(CopyOperation* operation);
// CUDA_ERROR_INVALID_VALUE for an invalid shape, and for memory that kernels of the device `by` may
// not write.
CUresult check_fill(const FillOperation& fill, const Device& by);

// A copy between two addresses of any kind, not resolved yet.
CUDA_MEMCPY3D_PEER linear_copy(CUdeviceptr destination, CUdeviceptr source, size_t bytes);

}  // namespace softgpu::driver
