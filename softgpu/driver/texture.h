// Texture and surface objects: the descriptors behind CUtexObject and CUsurfObject.
//
// When an object is made, its descriptor is checked and turned into the value that kernels read
// (softgpu/texture/texture.h). An object does not keep its array or memory: a kernel that uses the
// object after their release faults. An object belongs to the context that it was made in and is
// destroyed with it. Any thread; nothing blocks.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <cuda.h>

#include "softgpu/texture/texture.h"

namespace softgpu::driver {

class Context;
class Device;

struct TextureObject {
  const Context* context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC sampler{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;
};

struct SurfaceObject {
  const Context* context = nullptr;
  CUDA_RESOURCE_DESC resource{};
};

// The descriptors of the live objects of one kind, by handle.
template <class Object>
class ObjectTable {
 public:
  void insert(uint64_t handle, const Object& object) {
    std::lock_guard lock(mutex_);
    objects_.emplace(handle, object);
  }
  std::optional<Object> find(uint64_t handle) const {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? std::nullopt : std::optional(found->second);
  }
  // False for an unknown handle.
  bool remove(uint64_t handle) {
    std::lock_guard lock(mutex_);
    return objects_.erase(handle) != 0;
  }
  // Removes the objects of a context and returns their handles.
  std::vector<uint64_t> remove_of(const Context& context) {
    std::vector<uint64_t> handles;
    std::lock_guard lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      const auto here = it++;
      if (here->second.context != &context) continue;
      handles.push_back(here->first);
      objects_.erase(here);
    }
    return handles;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Object> objects_;
};
ObjectTable<TextureObject>& texture_objects();
ObjectTable<SurfaceObject>& surface_objects();

// Makes the texture that the descriptors describe; `view` may be nullptr. CUDA_ERROR_INVALID_VALUE
// for descriptors that driver 580 refuses on an H100. That driver accepts more descriptors than its
// documentation says.
CUresult texture_of(const Device& device, const CUDA_RESOURCE_DESC& resource,
                    const CUDA_TEXTURE_DESC& sampler, const CUDA_RESOURCE_VIEW_DESC* view,
                    texture::Texture* made);
CUresult surface_of(const CUDA_RESOURCE_DESC& resource, texture::Surface* made);

// Invalidates the handles of a context that ends.
void destroy_textures_of(const Context& context);

}  // namespace softgpu::driver
