// cuTexObject* and cuSurfObject*: create, describe and destroy texture and surface objects.
#include <memory>
#include <utility>

#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/texture.h"
#include "softgpu/texture/objects.h"

using namespace softgpu::driver;

namespace {

template <class Object>
std::shared_ptr<Object> find_object(uint64_t handle) {
  return handle_table<Object>().find(reinterpret_cast<const void*>(handle));
}

// Enters and copies what `part` gives of the object.
template <class Object, class Result, class Part>
CUresult describe(Result* result, uint64_t handle, Part part) {
  Context* context = nullptr;
  if (CUresult entered = enter(&context)) return entered;
  const std::shared_ptr<Object> object = find_object<Object>(handle);
  if (!object || !result) return CUDA_ERROR_INVALID_VALUE;
  *result = part(*object);
  return CUDA_SUCCESS;
}

template <class Object>
CUresult destroy(uint64_t handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const void* key = reinterpret_cast<const void*>(handle);
  // Like the real driver, this does not tell whether there was such an object.
  if (handle_table<Object>().remove(key)) softgpu::texture::objects().remove(handle);
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
  if (CUresult result = texture_of(*context, *resource, *sampler, view, &texture)) return result;
  auto object = std::make_shared<TextureObject>();
  object->context = context;
  object->resource = *resource;
  object->sampler = *sampler;
  if (view) object->view = *view;
  *handle = object->handle();
  softgpu::texture::objects().add(*handle, std::move(texture));
  handle_table<TextureObject>().insert(std::move(object));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject handle) { return destroy<TextureObject>(handle); }

CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject handle) {
  return describe<TextureObject>(resource, handle, [](const auto& o) { return o.resource; });
}

CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* sampler, CUtexObject handle) {
  return describe<TextureObject>(sampler, handle, [](const auto& o) { return o.sampler; });
}

CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject handle) {
  // Without a view nothing is written.
  return describe<TextureObject>(view, handle,
                                 [&](const auto& o) { return o.view.value_or(*view); });
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* handle, const CUDA_RESOURCE_DESC* resource) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !resource) return CUDA_ERROR_INVALID_VALUE;
  softgpu::texture::Surface surface;
  if (CUresult result = surface_of(*resource, &surface)) return result;
  auto object = std::make_shared<SurfaceObject>();
  object->context = context;
  object->resource = *resource;
  *handle = object->handle();
  softgpu::texture::objects().add(*handle, std::move(surface));
  handle_table<SurfaceObject>().insert(std::move(object));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject handle) { return destroy<SurfaceObject>(handle); }

CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject handle) {
  return describe<SurfaceObject>(resource, handle, [](const auto& o) { return o.resource; });
}

}  // extern "C"
