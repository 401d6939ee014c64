// Arrays: the objects behind CUarray and CUmipmappedArray.
//
// An array is device memory with a shape and a texel format: rows without gaps, slices without
// gaps, unless it is sparse (sparse.h). Copies address it by coordinates, textures and surfaces
// through an Image of it. A mipmapped array is one allocation, and each of its levels is an Array
// without memory of its own.
//
// An array belongs to the context in which it was made, and is destroyed with that context. Any
// thread; nothing blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <cuda.h>

#include "softgpu/texture/format.h"

namespace softgpu::driver {

class Context;
class Device;
struct MipmappedArray;
struct Tiles;

struct Array {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  texture::Format format;
  size_t element_bytes = 0;
  CUdeviceptr memory = 0;
  size_t row_pitch = 0, slice_pitch = 0;     // bytes; 0: no gaps
  std::shared_ptr<Tiles> tiles;              // of a sparse array; null for levels
  const MipmappedArray* level_of = nullptr;  // the owner of a level's memory; nullptr: not a level

  CUarray handle() { return reinterpret_cast<CUarray>(this); }
  size_t rows() const { return descriptor.Height ? descriptor.Height : 1; }
  size_t slices() const { return descriptor.Depth ? descriptor.Depth : 1; }
  size_t row_bytes() const { return descriptor.Width * element_bytes; }
  size_t pitch_bytes() const { return row_pitch ? row_pitch : row_bytes(); }
  size_t slice_bytes() const { return slice_pitch ? slice_pitch : pitch_bytes() * rows(); }
  size_t bytes() const { return slice_bytes() * slices(); }
};

struct MipmappedArray {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  CUdeviceptr memory = 0;
  std::shared_ptr<Tiles> tiles;  // of a sparse array
  std::vector<std::shared_ptr<Array>> levels;

  CUmipmappedArray handle() { return reinterpret_cast<CUmipmappedArray>(this); }
};

// The kind that the flags and extents of a descriptor select.
enum class ArrayKind { k1d, k2d, k3d, k1dLayered, k2dLayered, kCubemap, kCubemapLayered };
ArrayKind kind_of(const CUDA_ARRAY3D_DESCRIPTOR& descriptor);

// CUDA_ERROR_INVALID_VALUE for shapes and formats that the device does not have, _NOT_SUPPORTED for
// flags of features that softgpu lacks.
CUresult check_array(const Device& device, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                     bool is_mipmapped);
// The number of levels down to one texel.
unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR& descriptor);

// Both functions take a descriptor that check_array() accepts. `levels`: 1 to most_levels().
CUresult make_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                    std::shared_ptr<Array>* made);
CUresult make_mipmapped_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                              unsigned levels, std::shared_ptr<MipmappedArray>* made);

std::shared_ptr<Array> array_from_handle(CUarray handle);
// Invalidates the handles. The memory is released with the context's allocations.
void destroy_arrays_of(Context& context);

}  // namespace softgpu::driver
