#include "softgpu/driver/texture_reference.h"

#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/texture.h"
#include "softgpu/texture/objects.h"

namespace softgpu::driver {
namespace {

template <class Reference>
bool is_of(const Reference& reference, const std::shared_ptr<Module>& module) {
  return !reference.module.owner_before(module) && !module.owner_before(reference.module);
}

template <class Reference>
CUresult reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                      ptx::Reference kind, std::shared_ptr<Reference>* reference) {
  static auto* mutex = new std::mutex;
  const exec::Global* variable = module->program().find_global(name);
  if (variable == nullptr || variable->reference != kind) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(*mutex);
  *reference = handle_table<Reference>().find_if([&](const Reference& known) {
    return known.variable == variable->address && is_of(known, module);
  });
  if (*reference) return CUDA_SUCCESS;
  *reference = std::make_shared<Reference>(module->context());
  (*reference)->module = module;
  (*reference)->variable = variable->address;
  handle_table<Reference>().insert(*reference);
  return CUDA_SUCCESS;
}

// Replaces the reference's object. Stores the new handle in the reference's variable, if the module
// of the variable still exists.
void replace_object(AnyReference& reference, uint64_t object) {
  if (reference.object != 0) texture::objects().remove(reference.object);
  reference.object = object;
  const std::shared_ptr<Module> module = reference.module.lock();
  if (!module) return;
  __atomic_store_n(reinterpret_cast<uint64_t*>(reference.variable), object, __ATOMIC_RELEASE);
}

}  // namespace

AnyReference::~AnyReference() {
  if (object != 0) texture::objects().remove(object);
}

TextureReference::TextureReference(Context& of) : context(&of), device(of.device()) {}

CUresult texture_reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                              std::shared_ptr<TextureReference>* reference) {
  return reference_of(module, name, ptx::Reference::kTexture, reference);
}

CUresult surface_reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                              std::shared_ptr<SurfaceReference>* reference) {
  return reference_of(module, name, ptx::Reference::kSurface, reference);
}

void drop_references_of(const std::shared_ptr<Module>& module) {
  const auto of_module = [&](const auto& reference) { return is_of(reference, module); };
  handle_table<TextureReference>().remove_if(of_module);
  handle_table<SurfaceReference>().remove_if(of_module);
}

void drop_references_of(const Context& context) {
  handle_table<TextureReference>().remove_if([&](const TextureReference& reference) {
    return reference.variable == 0 && reference.context == &context;
  });
}

CUresult update(TextureReference& reference) {
  if (!reference.is_bound) return CUDA_SUCCESS;
  texture::Texture texture;
  if (CUresult result =
          texture_of(reference.device, reference.resource, reference.sampler, nullptr, &texture)) {
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
