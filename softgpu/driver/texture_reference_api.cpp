// cuTexRef*, cuSurfRef*, cuModuleGetTexRef and cuModuleGetSurfRef: deprecated, but still in the
// driver API, for modules that an older nvcc compiled.
#include <algorithm>
#include <memory>
#include <mutex>

#include <cuda.h>

#include "softgpu/driver/array.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/texture_reference.h"

using namespace softgpu::driver;

namespace {

// Calls enter(), then `use` with the reference, under the reference's mutex.
template <class Reference, class Handle, class Use>
CUresult with(Handle handle, Use use) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const std::shared_ptr<Reference> reference = handle_table<Reference>().find(handle);
  if (!reference) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(reference->mutex);
  return use(*reference);
}

// Changes a texture reference and rebinds it. A change that cannot be bound is undone.
template <class Change>
CUresult change(CUtexref handle, Change apply) {
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    const TextureBinding before = reference.binding();
    apply(reference);
    const CUresult result = update(reference);
    if (result != CUDA_SUCCESS) reference.binding() = before;
    return result;
  });
}

// Sets `*result` to `part` of a texture reference.
template <class Result, class Part>
CUresult tell(Result* result, CUtexref handle, Part part) {
  if (!result) return CUDA_ERROR_INVALID_VALUE;
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    *result = part(reference);
    return CUDA_SUCCESS;
  });
}

// Sets `*result` to `part` of the resource that a texture reference is bound to, which must be of
// this type.
template <class Result, class Part>
CUresult tell_bound(Result* result, CUtexref handle, CUresourcetype type, Part part) {
  if (!result) return CUDA_ERROR_INVALID_VALUE;
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    if (!reference.is_bound || reference.resource.resType != type) return CUDA_ERROR_INVALID_VALUE;
    *result = part(reference.resource);
    return CUDA_SUCCESS;
  });
}

bool is_bound_to_array(const TextureReference& reference) {
  return reference.is_bound && reference.resource.resType == CU_RESOURCE_TYPE_ARRAY &&
         array_from_handle(reference.resource.res.array.hArray);
}

constexpr unsigned kFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                            CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                            CU_TRSF_SEAMLESS_CUBEMAP;

}  // namespace

extern "C" {

CUresult CUDAAPI cuModuleGetTexRef(CUtexref* handle, CUmodule module_handle, const char* name) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Module> module = module_from_handle(module_handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<TextureReference> reference;
  if (CUresult result = texture_reference_of(module, name, &reference)) return result;
  *handle = reference->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetSurfRef(CUsurfref* handle, CUmodule module_handle, const char* name) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Module> module = module_from_handle(module_handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<SurfaceReference> reference;
  if (CUresult result = surface_reference_of(module, name, &reference)) return result;
  *handle = reference->handle();
  return CUDA_SUCCESS;
}

// Kernels name their references, so there is nothing to bind.
CUresult CUDAAPI cuParamSetTexRef(CUfunction function_handle, int unit, CUtexref handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Function> function;
  if (CUresult result = function_from_handle(function_handle, &function)) return result;
  if (unit != CU_PARAM_TR_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return with<TextureReference>(handle, [](TextureReference& reference) {
    const bool has_array =
        reference.is_bound &&
        (reference.resource.resType != CU_RESOURCE_TYPE_ARRAY || is_bound_to_array(reference));
    return has_array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuTexRefCreate(CUtexref* handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto reference = std::make_shared<TextureReference>(*context);
  *handle = reference->handle();
  handle_table<TextureReference>().insert(std::move(reference));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexRefDestroy(CUtexref handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const auto reference = handle_table<TextureReference>().find(handle);
  if (!reference) return CUDA_ERROR_INVALID_HANDLE;
  if (reference->variable != 0) return CUDA_ERROR_INVALID_VALUE;
  handle_table<TextureReference>().remove(handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexRefSetArray(CUtexref handle, CUarray array, unsigned flags) {
  if (flags != CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
  const auto found = array_from_handle(array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  return change(handle, [&](TextureReference& reference) {
    reference.is_bound = true;
    reference.resource = {};
    reference.resource.resType = CU_RESOURCE_TYPE_ARRAY;
    reference.resource.res.array.hArray = array;
    reference.format = found->descriptor.Format;
    reference.channels = found->descriptor.NumChannels;
  });
}

CUresult CUDAAPI cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray array,
                                           unsigned flags) {
  if (flags != CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
  return change(handle, [&](TextureReference& reference) {
    reference.is_bound = true;
    reference.resource = {};
    reference.resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    reference.resource.res.mipmap.hMipmappedArray = array;
  });
}

// Memory that is not aligned is bound from the aligned address below it; the program adds the
// offset to its coordinates.
CUresult CUDAAPI cuTexRefSetAddress_v2(size_t* offset, CUtexref handle, CUdeviceptr address,
                                       size_t bytes) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const auto alignment = static_cast<size_t>(
      context->device().attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT).value_or(512));
  const size_t beyond = address % alignment;
  if (!offset && beyond != 0) return CUDA_ERROR_INVALID_VALUE;
  if (offset) *offset = beyond;
  return change(handle, [&](TextureReference& reference) {
    reference.is_bound = address != 0;
    reference.resource = {};
    reference.resource.resType = CU_RESOURCE_TYPE_LINEAR;
    reference.resource.res.linear = {address - beyond, reference.format, reference.channels,
                                     bytes + beyond};
  });
}

CUresult CUDAAPI cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* descriptor,
                                         CUdeviceptr address, size_t pitch) {
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  return change(handle, [&](TextureReference& reference) {
    reference.is_bound = true;
    reference.resource = {};
    reference.resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    reference.resource.res.pitch2D = {
        address,           descriptor->Format, descriptor->NumChannels,
        descriptor->Width, descriptor->Height, pitch};
  });
}

CUresult CUDAAPI cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels) {
  if (!softgpu::texture::format_of(format, static_cast<unsigned>(channels))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    reference.format = format;
    reference.channels = static_cast<unsigned>(channels);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return change(handle, [&](TextureReference& reference) {
    reference.sampler.addressMode[dimension] = mode;
  });
}

CUresult CUDAAPI cuTexRefSetFilterMode(CUtexref handle, CUfilter_mode mode) {
  return change(handle, [&](TextureReference& r) { r.sampler.filterMode = mode; });
}

CUresult CUDAAPI cuTexRefSetMipmapFilterMode(CUtexref handle, CUfilter_mode mode) {
  return change(handle, [&](TextureReference& r) { r.sampler.mipmapFilterMode = mode; });
}

CUresult CUDAAPI cuTexRefSetMipmapLevelBias(CUtexref handle, float bias) {
  return change(handle, [&](TextureReference& r) { r.sampler.mipmapLevelBias = bias; });
}

CUresult CUDAAPI cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float greatest) {
  return change(handle, [&](TextureReference& reference) {
    reference.sampler.minMipmapLevelClamp = least;
    reference.sampler.maxMipmapLevelClamp = greatest;
  });
}

CUresult CUDAAPI cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned anisotropy) {
  return change(handle, [&](TextureReference& r) { r.sampler.maxAnisotropy = anisotropy; });
}

CUresult CUDAAPI cuTexRefSetBorderColor(CUtexref handle, float* color) {
  if (!color) return CUDA_ERROR_INVALID_VALUE;
  return change(handle, [&](TextureReference& r) { std::copy_n(color, 4, r.sampler.borderColor); });
}

CUresult CUDAAPI cuTexRefSetFlags(CUtexref handle, unsigned flags) {
  if (flags & ~kFlags) return CUDA_ERROR_INVALID_VALUE;
  return change(handle, [&](TextureReference& r) { r.sampler.flags = flags; });
}

CUresult CUDAAPI cuTexRefGetAddress_v2(CUdeviceptr* address, CUtexref handle) {
  return tell_bound(address, handle, CU_RESOURCE_TYPE_LINEAR,
                    [](const CUDA_RESOURCE_DESC& bound) { return bound.res.linear.devPtr; });
}

CUresult CUDAAPI cuTexRefGetArray(CUarray* array, CUtexref handle) {
  if (!array) return CUDA_ERROR_INVALID_VALUE;
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    if (!is_bound_to_array(reference)) return CUDA_ERROR_INVALID_VALUE;
    *array = reference.resource.res.array.hArray;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexRefGetMipmappedArray(CUmipmappedArray* array, CUtexref handle) {
  return tell_bound(
      array, handle, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
      [](const CUDA_RESOURCE_DESC& bound) { return bound.res.mipmap.hMipmappedArray; });
}

CUresult CUDAAPI cuTexRefGetAddressMode(CUaddress_mode* mode, CUtexref handle, int dimension) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return tell(mode, handle, [&](TextureReference& r) { return r.sampler.addressMode[dimension]; });
}

CUresult CUDAAPI cuTexRefGetFilterMode(CUfilter_mode* mode, CUtexref handle) {
  return tell(mode, handle, [](TextureReference& r) { return r.sampler.filterMode; });
}

CUresult CUDAAPI cuTexRefGetFormat(CUarray_format* format, int* channels, CUtexref handle) {
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    if (format) *format = reference.format;
    if (channels) *channels = static_cast<int>(reference.channels);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexRefGetMipmapFilterMode(CUfilter_mode* mode, CUtexref handle) {
  return tell(mode, handle, [](TextureReference& r) { return r.sampler.mipmapFilterMode; });
}

CUresult CUDAAPI cuTexRefGetMipmapLevelBias(float* bias, CUtexref handle) {
  return tell(bias, handle, [](TextureReference& r) { return r.sampler.mipmapLevelBias; });
}

CUresult CUDAAPI cuTexRefGetMipmapLevelClamp(float* least, float* greatest, CUtexref handle) {
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    if (least) *least = reference.sampler.minMipmapLevelClamp;
    if (greatest) *greatest = reference.sampler.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexRefGetMaxAnisotropy(int* anisotropy, CUtexref handle) {
  return tell(anisotropy, handle,
              [](TextureReference& r) { return static_cast<int>(r.sampler.maxAnisotropy); });
}

CUresult CUDAAPI cuTexRefGetBorderColor(float* color, CUtexref handle) {
  if (!color) return CUDA_ERROR_INVALID_VALUE;
  return with<TextureReference>(handle, [&](TextureReference& reference) {
    std::copy_n(reference.sampler.borderColor, 4, color);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexRefGetFlags(unsigned* flags, CUtexref handle) {
  return tell(flags, handle, [](TextureReference& r) { return r.sampler.flags; });
}

CUresult CUDAAPI cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = array_from_handle(array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!(found->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST)) return CUDA_ERROR_INVALID_VALUE;
  return with<SurfaceReference>(handle, [&](SurfaceReference& reference) {
    const CUarray before = reference.array;
    reference.array = array;
    const CUresult result = update(reference);
    if (result != CUDA_SUCCESS) reference.array = before;
    return result;
  });
}

CUresult CUDAAPI cuSurfRefGetArray(CUarray* array, CUsurfref handle) {
  if (!array) return CUDA_ERROR_INVALID_VALUE;
  return with<SurfaceReference>(handle, [&](SurfaceReference& reference) {
    *array = reference.array;
    return reference.array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
