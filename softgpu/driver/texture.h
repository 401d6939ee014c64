// Texture and surface objects: the descriptors behind CUtexObject and CUsurfObject.
//
// A descriptor is checked when the object is made, and turned into the value that kernels read
// (softgpu/texture/texture.h). An object does not keep its array or memory: a kernel that uses it
// after they are gone faults. An object belongs to the context that it was made in and is destroyed
// with it. Any thread; nothing blocks.
#pragma once

#include <optional>

#include <cuda.h>

#include "softgpu/texture/texture.h"

namespace softgpu::driver {

class Context;

struct TextureObject {
  Context* context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC sampler{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;

  CUtexObject handle() const { return reinterpret_cast<CUtexObject>(this); }
};

struct SurfaceObject {
  Context* context = nullptr;
  CUDA_RESOURCE_DESC resource{};

  CUsurfObject handle() const { return reinterpret_cast<CUsurfObject>(this); }
};

// What the descriptors describe; `view` may be nullptr. CUDA_ERROR_INVALID_VALUE for what a driver
// 580 with an H100 refuses; it refuses less than its documentation says.
CUresult texture_of(const Context& context, const CUDA_RESOURCE_DESC& resource,
                    const CUDA_TEXTURE_DESC& sampler, const CUDA_RESOURCE_VIEW_DESC* view,
                    texture::Texture* made);
CUresult surface_of(const CUDA_RESOURCE_DESC& resource, texture::Surface* made);

// Invalidates the handles, also for kernels that start later.
void destroy_textures_of(Context& context);

}  // namespace softgpu::driver
