// CUDA_MEMCPY3D_PEER is the common form of the driver API's copies; other forms are converted to
// it. Pure functions of the caller's values; host pointers are passed on and never followed.
#pragma once

#include <bit>
#include <cstddef>

#include <cuda.h>

namespace rcuda::cuda {

// The structures differ in two members: CUDA_MEMCPY3D has reserved pointers instead of contexts.
static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER));
static_assert(offsetof(CUDA_MEMCPY3D, reserved0) == offsetof(CUDA_MEMCPY3D_PEER, srcContext));
static_assert(offsetof(CUDA_MEMCPY3D, dstXInBytes) == offsetof(CUDA_MEMCPY3D_PEER, dstXInBytes));
static_assert(offsetof(CUDA_MEMCPY3D, reserved1) == offsetof(CUDA_MEMCPY3D_PEER, dstContext));
static_assert(offsetof(CUDA_MEMCPY3D, Depth) == offsetof(CUDA_MEMCPY3D_PEER, Depth));

// Leaves the contexts null: both sides use the current context.
inline CUDA_MEMCPY3D_PEER peer_shape(const CUDA_MEMCPY3D& copy) {
  auto shape = std::bit_cast<CUDA_MEMCPY3D_PEER>(copy);
  shape.srcContext = shape.dstContext = nullptr;
  return shape;
}

inline CUDA_MEMCPY3D_PEER peer_shape(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D_PEER shape{};
  shape.srcXInBytes = copy.srcXInBytes;
  shape.srcY = copy.srcY;
  shape.srcMemoryType = copy.srcMemoryType;
  shape.srcHost = copy.srcHost;
  shape.srcDevice = copy.srcDevice;
  shape.srcArray = copy.srcArray;
  shape.srcPitch = copy.srcPitch;
  shape.dstXInBytes = copy.dstXInBytes;
  shape.dstY = copy.dstY;
  shape.dstMemoryType = copy.dstMemoryType;
  shape.dstHost = copy.dstHost;
  shape.dstDevice = copy.dstDevice;
  shape.dstArray = copy.dstArray;
  shape.dstPitch = copy.dstPitch;
  shape.WidthInBytes = copy.WidthInBytes;
  shape.Height = copy.Height;
  shape.Depth = 1;
  return shape;
}

// The inverse of peer_shape(), for a copy whose contexts are null.
inline CUDA_MEMCPY3D without_contexts(CUDA_MEMCPY3D_PEER shape) {
  shape.srcContext = shape.dstContext = nullptr;
  return std::bit_cast<CUDA_MEMCPY3D>(shape);
}

}  // namespace rcuda::cuda
