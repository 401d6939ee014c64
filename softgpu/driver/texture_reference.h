// Texture and surface references: variables of a module that a program binds to memory.
//
// In PTX a reference is a .texref or .surfref variable. Here the variable holds the handle of a
// texture or surface object; kernels read it when they execute. Every change of a bound reference
// makes a new object and stores its handle. So a change also affects queued kernels that have not
// begun; on hardware it affects only later launches. A reference ends with its module, or with the
// context of its cuTexRefCreate. Any thread; nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <cuda.h>

namespace softgpu::driver {

class Context;
class Device;
class Module;

struct AnyReference {
  AnyReference() = default;
  ~AnyReference();  // destroys `object`
  AnyReference(const AnyReference&) = delete;
  AnyReference& operator=(const AnyReference&) = delete;

  std::weak_ptr<Module> module;  // of `variable`
  CUdeviceptr variable = 0;      // 0: made by cuTexRefCreate
  std::mutex mutex;              // guards `object` and what the reference is bound to
  uint64_t object = 0;           // the handle in the variable; 0: none
};

struct TextureBinding {
  TextureBinding() {
    for (CUaddress_mode& mode : sampler.addressMode) mode = CU_TR_ADDRESS_MODE_CLAMP;
  }

  bool is_bound = false;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC sampler{};
  CUarray_format format = CU_AD_FORMAT_FLOAT;
  unsigned channels = 1;
};

struct TextureReference : AnyReference, TextureBinding {
  explicit TextureReference(Context& of);
  CUtexref handle() { return reinterpret_cast<CUtexref>(this); }
  TextureBinding& binding() { return *this; }

  const Context* const context;  // may have ended
  const Device& device;
};

struct SurfaceReference : AnyReference {
  explicit SurfaceReference(Context&) {}
  CUsurfref handle() { return reinterpret_cast<CUsurfref>(this); }

  CUarray array = nullptr;
};

// The reference of a module's variable: the same object for each call. CUDA_ERROR_NOT_FOUND if the
// module has no such variable.
CUresult texture_reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                              std::shared_ptr<TextureReference>* reference);
CUresult surface_reference_of(const std::shared_ptr<Module>& module, const std::string& name,
                              std::shared_ptr<SurfaceReference>* reference);

// Invalidate the handles of all references of a module that is unloaded, or of all references that
// cuTexRefCreate made in a context that ends.
void drop_references_of(const std::shared_ptr<Module>& module);
void drop_references_of(const Context& context);

// Makes a new object for a changed reference. The caller holds the reference's mutex.
CUresult update(TextureReference& reference);
CUresult update(SurfaceReference& reference);

}  // namespace softgpu::driver
