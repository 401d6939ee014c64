// cuArray* and cuMipmappedArray*: create, describe and destroy arrays. sparse.cpp has the functions
// for tiles.
#include <algorithm>

#include <cuda.h>

#include "softgpu/driver/array.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

void free_array_memory(CUdeviceptr address) {
  if (std::shared_ptr<Allocation> gone =
          memory_registry().remove(address, [](const Allocation&) { return true; })) {
    release_memory(*gone);
  }
}

std::shared_ptr<MipmappedArray> mipmapped_from_handle(CUmipmappedArray handle) {
  return handle_table<MipmappedArray>().find(handle);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !descriptor) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_array(context->device(), *descriptor, false)) return result;
  std::shared_ptr<Array> array;
  if (CUresult result = make_array(*context, *descriptor, &array)) return result;
  *handle = array->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full{};
  full.Width = descriptor->Width;
  full.Height = descriptor->Height;
  full.Format = descriptor->Format;
  full.NumChannels = descriptor->NumChannels;
  return cuArray3DCreate_v2(handle, &full);
}

CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Array> array = array_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Array> array = array_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  descriptor->Width = array->descriptor.Width;
  descriptor->Height = array->descriptor.Height;
  descriptor->Format = array->descriptor.Format;
  descriptor->NumChannels = array->descriptor.NumChannels;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (CUresult result = check_unsafe_call()) return result;
  std::shared_ptr<Array> array = array_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (array->level_of) return CUDA_SUCCESS;  // destroyed with its mipmapped array
  // Copies in progress still need the array.
  if (CUresult result = array->context->synchronize()) return result;
  if (!handle_table<Array>().remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  free_array_memory(array->memory);
  return CUDA_SUCCESS;
}

// softgpu has no planar formats.
CUresult CUDAAPI cuArrayGetPlane(CUarray* plane, CUarray handle, unsigned) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!array_from_handle(handle)) return CUDA_ERROR_INVALID_HANDLE;
  (void)plane;
  return CUDA_ERROR_INVALID_VALUE;
}

// Only arrays with deferred mapping have memory requirements, and softgpu does not support them.
CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUarray handle,
                                              CUdevice) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  return array_from_handle(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* handle,
                                        const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                        unsigned levels) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !descriptor) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_array(context->device(), *descriptor, true)) return result;
  levels = std::clamp(levels, 1u, most_levels(*descriptor));
  std::shared_ptr<MipmappedArray> array;
  if (CUresult result = make_mipmapped_array(*context, *descriptor, levels, &array)) return result;
  *handle = array->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray* level_array, CUmipmappedArray handle,
                                          unsigned level) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<MipmappedArray> array = mipmapped_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!level_array || level >= array->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *level_array = array->levels[level]->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (CUresult result = check_unsafe_call()) return result;
  std::shared_ptr<MipmappedArray> array = mipmapped_from_handle(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = array->context->synchronize()) return result;
  if (!handle_table<MipmappedArray>().remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  handle_table<Array>().remove_if(
      [&](const Array& level) { return level.level_of == array.get(); });
  free_array_memory(array->memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*,
                                                       CUmipmappedArray handle, CUdevice) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  return mipmapped_from_handle(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"
