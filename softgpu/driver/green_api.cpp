// cuDeviceGetDevResource and its family. The answers are those of driver 580 on an H100, except
// that softgpu's multiprocessors are not in clusters, so a part of a device is only a count.
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>

#include <cuda.h>

#include "softgpu/driver/device.h"
#include "softgpu/driver/green.h"

using namespace softgpu::driver;

namespace {

// Except for the remainder of a split and the whole device, a part has a multiple of this number of
// multiprocessors.
constexpr unsigned kCoscheduled = 8;
constexpr unsigned kLeast = 2;  // for parts that need not be coscheduled

// The data that softgpu stores in the padding of a CUdevResource.
struct Internal {
  uint32_t magic;
  int32_t device;
  uint32_t multiprocessors;
  uint32_t is_part;  // a part is not split again
};
constexpr uint32_t kMagic = 0x736f6674;

Internal internal_of(const CUdevResource& resource) {
  Internal internal;
  std::memcpy(&internal, resource._internal_padding, sizeof internal);
  return internal;
}

CUdevResource make(int device, unsigned multiprocessors, bool is_part) {
  CUdevResource resource{};
  if (multiprocessors == 0) return resource;
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = multiprocessors;
  resource.sm.minSmPartitionSize = is_part ? 0 : kCoscheduled;
  resource.sm.smCoscheduledAlignment = is_part ? 0 : kCoscheduled;
  const Internal internal{kMagic, device, multiprocessors, is_part};
  std::memcpy(resource._internal_padding, &internal, sizeof internal);
  return resource;
}

CUresult check(const CUdevResource& resource) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const Internal internal = internal_of(resource);
  return internal.magic == kMagic && device_at(internal.device) &&
                 internal.multiprocessors == resource.sm.smCount
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

CUresult check_type(const CUdevResource* resource, CUdevResourceType type) {
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

// Never destroyed, as in NVIDIA's driver.
struct Descriptor {
  int device;
  unsigned multiprocessors;
};
struct Descriptors {
  std::mutex mutex;
  std::set<const void*> all;
};
Descriptors& descriptors() {
  static auto* instance = new Descriptors;
  return *instance;
}

}  // namespace

CUresult softgpu::driver::multiprocessors_of(CUdevResourceDesc desc, const Device& device,
                                             int* count) {
  if (!desc) {
    *count = device.multiprocessors();
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(descriptors().mutex);
  if (descriptors().all.count(desc) == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto& known = *reinterpret_cast<const Descriptor*>(desc);
  *count = static_cast<int>(known.multiprocessors);
  return known.device == device.ordinal() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

extern "C" {

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource,
                                        CUdevResourceType type) {
  if (CUresult result = check_initialized()) return result;
  const Device* device = device_at(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (CUresult result = check_type(resource, type)) return result;
  *resource = make(ordinal, static_cast<unsigned>(device->multiprocessors()), false);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext handle, CUdevResource* resource,
                                     CUdevResourceType type) {
  if (CUresult result = check_initialized()) return result;
  const std::shared_ptr<Context> context = handle ? Context::from_handle(handle) : nullptr;
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = check_type(resource, type)) return result;
  *resource =
      make(context->device().ordinal(), static_cast<unsigned>(context->multiprocessors()), false);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned int* count,
                                             const CUdevResource* input, CUdevResource* remaining,
                                             unsigned int flags, unsigned int least) {
  if (CUresult result = check_initialized()) return result;
  if (!count || !input || (groups && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check(*input)) return result;
  const Internal whole = internal_of(*input);
  const unsigned step =
      flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING ? kLeast : kCoscheduled;
  const uint64_t rounded = (uint64_t{least} + step - 1) / step * step;
  // The device's number of multiprocessors need not be a multiple of `step`. If `rounded` exceeds
  // this number, the only part is the whole device.
  unsigned size = rounded == 0 ? step : static_cast<unsigned>(rounded);
  if (rounded > whole.multiprocessors && least <= whole.multiprocessors) {
    size = whole.multiprocessors;
  }
  if (whole.is_part || size > whole.multiprocessors || least > whole.multiprocessors) {
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  }
  const unsigned possible = whole.multiprocessors / size;
  const unsigned made = groups && *count < possible ? *count : possible;
  for (unsigned i = 0; groups && i < made; ++i) groups[i] = make(whole.device, size, true);
  if (remaining) *remaining = make(whole.device, whole.multiprocessors - made * size, true);
  *count = made;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc* desc, CUdevResource* resources,
                                           unsigned int count) {
  if (CUresult result = check_initialized()) return result;
  if (!desc || !resources || count == 0) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<Descriptor>();
  for (unsigned i = 0; i < count; ++i) {
    if (CUresult result = check(resources[i])) return result;
    const Internal part = internal_of(resources[i]);
    if (i > 0 && part.device != made->device) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    made->device = part.device;
    made->multiprocessors += part.multiprocessors;
  }
  std::lock_guard lock(descriptors().mutex);
  *desc = reinterpret_cast<CUdevResourceDesc>(made.get());
  descriptors().all.insert(made.release());
  return CUDA_SUCCESS;
}

}  // extern "C"
