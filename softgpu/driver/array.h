// Array: the object behind a CUarray. Linear memory with a shape, which copies address by
// coordinates.
//
// There are no textures or surfaces, so an array can only be copied. An array belongs to the
// context it was made in and is destroyed with it. Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <memory>

#include <cuda.h>

namespace softgpu::driver {

class Context;

struct Array {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  size_t element_bytes = 0;
  CUdeviceptr memory = 0;

  CUarray handle() { return reinterpret_cast<CUarray>(this); }
  size_t rows() const { return descriptor.Height ? descriptor.Height : 1; }
  size_t slices() const { return descriptor.Depth ? descriptor.Depth : 1; }
  size_t pitch_bytes() const { return descriptor.Width * element_bytes; }
};

std::shared_ptr<Array> array_from_handle(CUarray handle);
void destroy_arrays_of(Context& context);

}  // namespace softgpu::driver
