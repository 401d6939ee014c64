// cuTexObject* and cuSurfObject*: create, describe and destroy texture and surface objects.
#include <optional>
#include <utility>

#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/texture.h"
#include "softgpu/texture/objects.h"

using namespace softgpu::driver;

namespace {

// Calls enter(), then sets `*result` to `part` of the object.
template <class Object, class Result, class Part>
CUresult describe(const ObjectTable<Object>& table, Result* result, uint64_t handle, Part part) {
  Context* context = nullptr;
  if (CUresult entered = enter(&context)) return entered;
  const std::optional<Object> object = table.find(handle);
  if (!object || !result) return CUDA_ERROR_INVALID_VALUE;
  *result = part(*object);
  return CUDA_SUCCESS;
}

template <class Object>
CUresult destroy(ObjectTable<Object>& table, uint64_t handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  // Succeeds for unknown handles too, like NVIDIA's driver.
  if (table.remove(handle)) softgpu::texture::objects().remove(handle);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* handle, const CUDA_RESOURCE_DESC* resource,
                                   const CUDA_TEXTURE_DESC* sampler,
                                   const CUDA_RESOURCE_VIEW_DESC* view) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !resource || !sampler) return CUDA_ERROR_INVALID_VALUE;
  softgpu::texture::Texture texture;
  if (CUresult result = texture_of(context->device(), *resource, *sampler, view, &texture))
    return result;
  TextureObject object{context, *resource, *sampler, std::nullopt};
  if (view) object.view = *view;
  *handle = softgpu::texture::objects().add(std::move(texture));
  texture_objects().insert(*handle, object);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject handle) {
  return destroy(texture_objects(), handle);
}

CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject handle) {
  return describe(texture_objects(), resource, handle, [](const auto& o) { return o.resource; });
}

CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* sampler, CUtexObject handle) {
  return describe(texture_objects(), sampler, handle, [](const auto& o) { return o.sampler; });
}

CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject handle) {
  // If the texture has no view, *view stays unchanged.
  return describe(texture_objects(), view, handle,
                  [&](const auto& o) { return o.view.value_or(*view); });
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* handle, const CUDA_RESOURCE_DESC* resource) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !resource) return CUDA_ERROR_INVALID_VALUE;
  softgpu::texture::Surface surface;
  if (CUresult result = surface_of(*resource, &surface)) return result;
  *handle = softgpu::texture::objects().add(surface);
  surface_objects().insert(*handle, {context, *resource});
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject handle) {
  return destroy(surface_objects(), handle);
}

CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject handle) {
  return describe(surface_objects(), resource, handle, [](const auto& o) { return o.resource; });
}

}  // extern "C"
