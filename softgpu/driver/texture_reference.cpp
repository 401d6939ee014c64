#include "softgpu/driver/texture_reference.h"

#include <map>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/texture.h"
#include "softgpu/texture/objects.h"

namespace softgpu::driver {
namespace {

// The references of variables, by the variable's address. A later module may get the address.
template <class Reference>
CUresult reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                      ptx::Reference kind, std::shared_ptr<Reference>* reference) {
  static auto* mutex = new std::mutex;
  static auto* references = new std::map<CUdeviceptr, std::shared_ptr<Reference>>;
  const exec::Global* variable = module->program().find_global(name);
  if (variable == nullptr || variable->reference != kind) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(*mutex);
  std::shared_ptr<Reference>& known = (*references)[variable->address];
  if (!known || known->module.lock() != module) {
    if (known) handle_table<Reference>().remove(known.get());
    known = std::make_shared<Reference>();
    known->module = module;
    known->variable = variable->address;
    handle_table<Reference>().insert(known);
  }
  *reference = known;
  return CUDA_SUCCESS;
}

// Stores the handle of a new object in the reference's variable, if its module still exists.
template <class Reference>
void replace_object(Reference& reference, uint64_t object) {
  if (reference.object != 0) texture::objects().remove(reference.object);
  reference.object = object;
  if (reference.variable == 0 || reference.module.expired()) return;
  __atomic_store_n(reinterpret_cast<uint64_t*>(reference.variable), object, __ATOMIC_RELEASE);
}

}  // namespace

CUresult texture_reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                              std::shared_ptr<TextureReference>* reference) {
  if (CUresult result = reference_of(module, name, ptx::Reference::kTexture, reference)) {
    return result;
  }
  (*reference)->context = &module->context();
  return CUDA_SUCCESS;
}

CUresult surface_reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                              std::shared_ptr<SurfaceReference>* reference) {
  return reference_of(module, name, ptx::Reference::kSurface, reference);
}

CUresult update(TextureReference& reference) {
  if (!reference.is_bound) return CUDA_SUCCESS;
  texture::Texture texture;
  if (CUresult result = texture_of(reference.context->device(), reference.resource,
                                   reference.sampler, nullptr, &texture)) {
    return result;
  }
  replace_object(reference, texture::objects().add(std::move(texture)));
  return CUDA_SUCCESS;
}

CUresult update(SurfaceReference& reference) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = reference.array;
  texture::Surface surface;
  if (CUresult result = surface_of(resource, &surface)) return result;
  replace_object(reference, texture::objects().add(surface));
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
