// Device resources and green contexts. The driver's resources stay in the worker. The application's
// CUdevResource holds the worker's number of the resource, and the device.
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include <cuda.h>

#include "client/objects/kinds.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "common/interop/export_tables.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The client's data in a CUdevResource. It is in the resource's padding, after the worker's number.
struct Owner {
  uint32_t magic;
  uint32_t device;
};
constexpr uint32_t kMagic = 0x72637561;
constexpr size_t kOwnerAt = 8;

void set_owner(CUdevResource* resource, CUdevice device) {
  if (resource->type == CU_DEV_RESOURCE_TYPE_INVALID) return;
  const Owner owner{kMagic, static_cast<uint32_t>(device)};
  std::memcpy(resource->_internal_padding + kOwnerAt, &owner, sizeof owner);
}

CUresult find_owner(const CUdevResource& resource, CUdevice* device) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Owner owner;
  std::memcpy(&owner, resource._internal_padding + kOwnerAt, sizeof owner);
  *device = static_cast<CUdevice>(owner.device);
  return owner.magic == kMagic && Process::get().device(*device)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

// A CUdevResourceDesc. Lives as long as the process: CUDA has no function that destroys one.
struct Descriptor {
  CUdevice device;
  unsigned number;
};

struct Descriptors {
  rcuda::Mutex mutex;
  std::set<const void*> all RCUDA_GUARDED_BY(mutex);

  static Descriptors& get() {
    static auto* instance = new Descriptors;
    return *instance;
  }
  bool contains(CUdevResourceDesc desc) {
    rcuda::MutexLock lock(mutex);
    return all.count(desc) != 0;
  }
};

CUresult find_green(CUgreenCtx handle, Context** context) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  *context = find<Context>(handle);
  if (!*context) return handle ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
  return (*context)->green ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult check_type(const CUdevResource* resource, CUdevResourceType type) {
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

CUresult create_green(CUdevice dev, unsigned number, unsigned flags, CUgreenCtx* green) {
  CUcontext handle = nullptr;
  unsigned multiprocessors = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_rcuda_green_create(dev, number, flags, &multiprocessors, &handle));
  auto* context = find<Context>(handle);
  context->flags = CU_CTX_MAP_HOST;
  context->multiprocessors = multiprocessors;
  context->green = true;
  *green = reinterpret_cast<CUgreenCtx>(context);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

// ---- resources ---------------------------------------------------------------------------------

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource* resource, CUdevResourceType type) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  RCUDA_RETURN_IF_CUDA_ERROR(check_type(resource, type));
  const CUresult result = forward_cuDeviceGetDevResource(dev, resource, type);
  if (result == CUDA_SUCCESS) set_owner(resource, dev);
  return result;
}

CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* context = find<Context>(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  RCUDA_RETURN_IF_CUDA_ERROR(check_type(resource, type));
  const CUresult result = forward_cuCtxGetDevResource(handle, resource, type);
  if (result == CUDA_SUCCESS) set_owner(resource, static_cast<CUdevice>(context->device));
  return result;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource,
                                  CUdevResourceType type) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_green(green, &context));
  return cuCtxGetDevResource(reinterpret_cast<CUcontext>(green), resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned flags, unsigned least) {
  constexpr unsigned kMost = 256;  // the most groups; each device has fewer multiprocessors
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!count || !input || (groups && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  CUdevice dev;
  RCUDA_RETURN_IF_CUDA_ERROR(find_owner(*input, &dev));
  unsigned made = groups ? std::min(*count, kMost) : 0;
  CUdevResource rest{};
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_rcuda_split_resource(dev, input, flags, least, groups, &made, &rest));
  if (groups && made > std::min(*count, kMost)) return CUDA_ERROR_UNKNOWN;
  *count = made;
  for (unsigned i = 0; groups && i < made; ++i) set_owner(&groups[i], dev);
  set_owner(&rest, dev);
  if (remaining) *remaining = rest;
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* desc, CUdevResource* resources,
                                   unsigned count) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!desc || !resources || count == 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevice dev = 0;
  for (unsigned i = 0; i < count; ++i) {
    CUdevice owner;
    RCUDA_RETURN_IF_CUDA_ERROR(find_owner(resources[i], &owner));
    if (i > 0 && owner != dev) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    dev = owner;
  }
  unsigned number = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_resource_desc(dev, resources, count, &number));
  auto* made = new Descriptor{dev, number};
  Descriptors& descriptors = Descriptors::get();
  rcuda::MutexLock lock(descriptors.mutex);
  descriptors.all.insert(made);
  *desc = reinterpret_cast<CUdevResourceDesc>(made);
  return CUDA_SUCCESS;
}

// ---- green contexts ----------------------------------------------------------------------------

CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc desc, CUdevice dev, unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!green) return CUDA_ERROR_INVALID_VALUE;
  if (!Process::get().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  unsigned number = 0;  // the resource of the whole device
  if (desc) {
    if (!Descriptors::get().contains(desc)) return CUDA_ERROR_INVALID_VALUE;
    const auto* known = reinterpret_cast<const Descriptor*>(desc);
    if (known->device != dev) return CUDA_ERROR_INVALID_DEVICE;
    number = known->number;
  }
  CUcontext primary;
  RCUDA_RETURN_IF_CUDA_ERROR(cuDevicePrimaryCtxRetain(&primary, dev));
  const CUresult result = create_green(dev, number, flags, green);
  if (result != CUDA_SUCCESS) (void)cuDevicePrimaryCtxRelease_v2(dev);
  return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_green(green, &context));
  const auto dev = static_cast<CUdevice>(context->device);
  (void)await_idle(*context->session, context->id);
  const auto handle = reinterpret_cast<CUcontext>(green);
  rcuda::interop::context_destroyed(handle);
  captures_lost(*context);
  CUresult result;
  {
    RetiredEarly retired;
    for (Stream* stream : objects_in<Stream>(context->session, context->id)) retired.add(stream);
    result = forward_rcuda_green_destroy(handle);
  }
  const CUresult released = cuDevicePrimaryCtxRelease_v2(dev);
  return result == CUDA_SUCCESS ? released : result;
}

CUresult cuCtxFromGreenCtx(CUcontext* handle, CUgreenCtx green) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_green(green, &context));
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_green(green, &context));
  return cuCtxGetId(reinterpret_cast<CUcontext>(context), id);
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_green(green, &context));
  return cuCtxRecordEvent(reinterpret_cast<CUcontext>(context), event);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  Context* context;
  RCUDA_RETURN_IF_CUDA_ERROR(find_green(green, &context));
  return cuCtxWaitEvent(reinterpret_cast<CUcontext>(context), event);
}

}  // extern "C"
