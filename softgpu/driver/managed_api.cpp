// cuMemAdvise, cuMemPrefetchAsync, cuMemRangeGetAttribute: hints about managed memory, which here
// is ordinary memory that host and devices share, so that there is nothing to move.
#include <cstring>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"

using namespace softgpu::driver;

namespace {

constexpr uint32_t kHostBit = 1u << 31;

std::mutex& advice_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// The older forms name a location by a device ordinal, or CU_DEVICE_CPU.
CUmemLocation location_of(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

CUresult check_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return device_at(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult find_managed(CUdeviceptr address, size_t bytes, std::shared_ptr<Allocation>* allocation) {
  if (bytes == 0 || !memory_registry().covered(address, bytes, allocation) ||
      (*allocation)->kind != MemoryKind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation;
  if (CUresult result = find_managed(address, bytes, &allocation)) return result;
  const bool uses_location = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                             advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                             advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (uses_location) {
    if (CUresult result = check_location(location)) return result;
  }
  const uint32_t bit =
      location.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1u << (location.id & 31) : kHostBit;
  std::lock_guard lock(advice_mutex());
  ManagedAdvice& kept = allocation->advice;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      kept.read_mostly = true;
      break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      kept.read_mostly = false;
      break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      kept.preferred = location;
      break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      kept.preferred = {};
      break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      kept.accessed_by |= bit;
      break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      kept.accessed_by &= ~bit;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult prefetch(CUdeviceptr address, size_t bytes, const CUmemLocation& location,
                  CUstream stream) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation;
  if (CUresult result = find_managed(address, bytes, &allocation)) return result;
  if (CUresult result = check_location(location)) return result;
  {
    std::lock_guard lock(advice_mutex());
    allocation->advice.prefetched = location;
  }
  return submit(stream, EmptyOperation{});
}

int as_device(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id;
    case CU_MEM_LOCATION_TYPE_INVALID:
      return CU_DEVICE_INVALID;
    default:
      return CU_DEVICE_CPU;
  }
}

CUresult put(void* data, size_t data_bytes, int value) {
  if (data_bytes != sizeof value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult range_attribute(const ManagedAdvice& advice, CUmem_range_attribute attribute, void* data,
                         size_t data_bytes) {
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return put(data, data_bytes, advice.read_mostly);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return put(data, data_bytes, as_device(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return put(data, data_bytes, as_device(advice.prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return put(data, data_bytes, static_cast<int>(advice.preferred.type));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return put(data, data_bytes, advice.preferred.id);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return put(data, data_bytes, static_cast<int>(advice.prefetched.type));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return put(data, data_bytes, advice.prefetched.id);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (data_bytes == 0 || data_bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
      std::vector<int> devices(data_bytes / sizeof(int), CU_DEVICE_INVALID);
      size_t next = 0;
      for (int i = 0; i < 32 && next < devices.size(); ++i) {
        if (advice.accessed_by & 1u << i) devices[next++] = i == 31 ? CU_DEVICE_CPU : i;
      }
      std::memcpy(data, devices.data(), data_bytes);
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                             CUdevice device) {
  return advise(address, bytes, advice, location_of(device));
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device,
                                    CUstream stream) {
  return prefetch(address, bytes, location_of(device), stream);
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                       unsigned int flags, CUstream stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return prefetch(address, bytes, location, stream);
}

CUresult CUDAAPI cuMemRangeGetAttribute(void* data, size_t data_bytes,
                                        CUmem_range_attribute attribute, CUdeviceptr address,
                                        size_t bytes) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation;
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = find_managed(address, bytes, &allocation)) return result;
  std::lock_guard lock(advice_mutex());
  return range_attribute(allocation->advice, attribute, data, data_bytes);
}

CUresult CUDAAPI cuMemRangeGetAttributes(void** data, size_t* data_bytes,
                                         CUmem_range_attribute* attributes, size_t count,
                                         CUdeviceptr address, size_t bytes) {
  if (!data || !data_bytes || !attributes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (CUresult result =
            cuMemRangeGetAttribute(data[i], data_bytes[i], attributes[i], address, bytes)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
