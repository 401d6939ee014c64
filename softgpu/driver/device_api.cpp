// cuInit, cuDriverGetVersion, cuDevice*, cuFlushGPUDirectRDMAWrites and cuProfiler*.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include <cuda.h>

#include "common/cuda/batch_shape.h"
#include "common/cuda/device_properties.h"
#include "common/cuda/notifications.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/pools.h"

using namespace softgpu::driver;

namespace {

CUresult find_device(CUdevice ordinal, Device** device) {
  if (CUresult result = check_initialized()) return result;
  *device = device_at(ordinal);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

std::string pci_bus_id(const Device& device) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0",
                static_cast<unsigned>(*device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)),
                static_cast<unsigned>(*device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)),
                static_cast<unsigned>(*device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)));
  return text;
}

CUresult atomic_capabilities(unsigned* capabilities, const CUatomicOperation* operations,
                             unsigned count, unsigned answer) {
  if (!capabilities || !operations || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (operations[i] >= CU_ATOMIC_OPERATION_MAX) return CUDA_ERROR_INVALID_VALUE;
    capabilities[i] = answer;
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return initialize();
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  if (check_initialized_without_gate() == CUDA_ERROR_DEINITIALIZED) return CUDA_ERROR_DEINITIALIZED;
  *version = driver_version();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  if (CUresult result = check_initialized()) return result;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (CUresult result = check_initialized()) return result;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!device_at(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(length), "%s", device->name());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  *uuid = device->uuid();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  return cuDeviceGetUuid(uuid, ordinal);
}

// LUIDs exist on Windows only.
CUresult CUDAAPI cuDeviceGetLuid(char*, unsigned int*, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->total_bytes();
  return CUDA_SUCCESS;
}

// A linear texture may span 4 GiB. CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH is the width
// for the largest texels (16 bytes).
CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format format,
                                                    unsigned channels, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  const size_t texel_bytes = rcuda::cuda::format_bytes(format) * channels;
  if (!width || texel_bytes == 0 || (channels != 1 && channels != 2 && channels != 4)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *width = (size_t{1} << 32) / std::max<size_t>(texel_bytes, 4);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::optional<int> found = device->attribute(attribute);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *value = *found;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetProperties(CUdevprop* properties, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  *properties = rcuda::cuda::device_properties(
      [&](CUdevice_attribute attribute) { return *device->attribute(attribute); });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  *major = kComputeCapability / 10;
  *minor = kComputeCapability % 10;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  const std::string id = pci_bus_id(*device);
  if (!text || length <= static_cast<int>(id.size())) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(text, static_cast<size_t>(length), "%s", id.c_str());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* ordinal, const char* text) {
  if (CUresult result = check_initialized()) return result;
  if (!ordinal || !text) return CUDA_ERROR_INVALID_VALUE;
  // [domain:]bus:device[.function], all hexadecimal.
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (std::sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < device_count(); ++i) {
    const Device& device = *device_at(i);
    if (static_cast<unsigned>(*device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)) == domain &&
        static_cast<unsigned>(*device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)) == bus &&
        static_cast<unsigned>(*device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)) == slot) {
      *ordinal = i;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can_access, CUdevice from, CUdevice to) {
  Device *a = nullptr, *b = nullptr;
  if (CUresult result = find_device(from, &a)) return result;
  if (CUresult result = find_device(to, &b)) return result;
  if (!can_access) return CUDA_ERROR_INVALID_VALUE;
  *can_access = a != b;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                         CUdevice to) {
  Device *a = nullptr, *b = nullptr;
  if (CUresult result = find_device(from, &a)) return result;
  if (CUresult result = find_device(to, &b)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (a == b) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      break;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                                   const CUatomicOperation* operations,
                                                   unsigned int count, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  return atomic_capabilities(capabilities, operations, count, 0);  // as over PCI Express
}

CUresult CUDAAPI cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                                  const CUatomicOperation* operations,
                                                  unsigned int count, CUdevice from, CUdevice to) {
  Device *a = nullptr, *b = nullptr;
  if (CUresult result = find_device(from, &a)) return result;
  if (CUresult result = find_device(to, &b)) return result;
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (a == b) return CUDA_ERROR_INVALID_DEVICE;
  return atomic_capabilities(capabilities, operations, count,
                             CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
                                 CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32 |
                                 CU_ATOMIC_CAPABILITY_SCALAR_64);
}

CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int* value, CUexecAffinityType type,
                                                CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  (void)type;  // no type is supported; unknown types get the same answer
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = default_pool(*device)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  if (CUresult result = check_initialized()) return result;
  Device* const device = device_at(ordinal);
  if (!device || !pool) return CUDA_ERROR_INVALID_VALUE;  // unlike cuDeviceGetDefaultMemPool
  *pool = current_pool(*device)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  std::shared_ptr<MemoryPool> pool = MemoryPool::from_handle(handle);
  if (!pool || &pool->device() != device || pool->imported()) return CUDA_ERROR_INVALID_VALUE;
  set_current_pool(*device, std::move(pool));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice ordinal) {
  Device* device = nullptr;
  return find_device(ordinal, &device);  // memory of destroyed graphs is not kept
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                              void* value) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return graph_memory_attribute(*device, attribute, value);
}

CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                              void* value) {
  Device* device = nullptr;
  if (CUresult result = find_device(ordinal, &device)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return reset_graph_memory_high(*device, attribute, value);
}

CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const bool known = target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                     (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                      scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // nothing to flush
}

CUresult CUDAAPI cuProfilerStart(void) {
  Context* context = nullptr;
  return enter(&context);
}

CUresult CUDAAPI cuProfilerStop(void) {
  Context* context = nullptr;
  return enter(&context);
}

CUresult CUDAAPI cuDeviceRegisterAsyncNotification(CUdevice ordinal, CUasyncCallback callback,
                                                   void*, CUasyncCallbackHandle* handle) {
  Device* device;
  if (CUresult result = find_device(ordinal, &device)) return result;
  return rcuda::cuda::Notifications::get().add(ordinal, callback, handle);
}

CUresult CUDAAPI cuDeviceUnregisterAsyncNotification(CUdevice ordinal,
                                                     CUasyncCallbackHandle handle) {
  Device* device;
  if (CUresult result = find_device(ordinal, &device)) return result;
  return rcuda::cuda::Notifications::get().remove(ordinal, handle);
}

}  // extern "C"
