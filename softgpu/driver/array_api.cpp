// cuArray*: creates, describes and destroys arrays. The copy functions move their contents.
#include <cuda.h>

#include "common/cuda/batch_shape.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace softgpu::driver {

std::shared_ptr<Array> array_from_handle(CUarray handle) {
  return handle_table<Array>().find(handle);
}

// Invalidates the arrays' handles. Their memory is released with the context's allocations.
void destroy_arrays_of(Context& context) {
  handle_table<Array>().remove_if([&](const Array& array) { return array.context == &context; });
}

}  // namespace softgpu::driver

namespace {

constexpr unsigned kFlagsAccepted = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                    CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER;

}  // namespace

extern "C" {

CUresult CUDAAPI cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !descriptor || descriptor->Width == 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t element = rcuda::cuda::format_bytes(descriptor->Format) * descriptor->NumChannels;
  if (element == 0 || descriptor->NumChannels > 4 || descriptor->NumChannels == 3) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (descriptor->Depth != 0 && descriptor->Height == 0 &&
      !(descriptor->Flags & CUDA_ARRAY3D_LAYERED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (descriptor->Width > 131072 || descriptor->Height > 65536 || descriptor->Depth > 16384) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (descriptor->Flags & ~kFlagsAccepted) return CUDA_ERROR_NOT_SUPPORTED;
  auto array = std::make_shared<Array>();
  array->context = context;
  array->descriptor = *descriptor;
  array->element_bytes = element;
  if (CUresult result =
          allocate_device_memory(*context, array->pitch_bytes() * array->rows() * array->slices(),
                                 MemoryKind::kModule, &array->memory)) {
    return result;
  }
  *handle = array->handle();
  handle_table<Array>().insert(std::move(array));
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
  if (!descriptor || array->descriptor.Depth != 0) return CUDA_ERROR_INVALID_VALUE;
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
  std::shared_ptr<Array> array = handle_table<Array>().find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  // Copies in progress still need the array.
  if (CUresult result = array->context->synchronize()) return result;
  if (!handle_table<Array>().remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (std::shared_ptr<Allocation> gone =
          memory_registry().remove(array->memory, [](const Allocation&) { return true; })) {
    release_memory(*gone);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
