// cuPointerGetAttribute and similar: properties of the memory at an address.
#include <cstring>
#include <optional>

#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pools.h"
#include "softgpu/driver/vmm.h"

using namespace softgpu::driver;

namespace {

// Writes an attribute in the type that the API documents.
template <typename T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

bool host_accessible(const Allocation& a) { return a.on_host() || a.kind == MemoryKind::kManaged; }

CUmemorytype memory_type(const Allocation& a) {
  return a.on_host() && a.kind != MemoryKind::kManaged ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

int ordinal_of(const Allocation& a) {
  if (a.device) return a.device->ordinal();
  return a.owner ? a.owner->device().ordinal() : 0;
}

unsigned access_flags(const Allocation& a) {
  Context* context = current_context();
  const uint32_t bit = context ? 1u << context->device().ordinal() : 0;
  if (a.writable & bit) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
  return a.readable & bit ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                          : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

CUmemAllocationHandleType handle_types(const Allocation& a) {
  if (a.physical) return a.physical->properties.requestedHandleTypes;
  return a.pool ? a.pool->handle_types() : CU_MEM_HANDLE_TYPE_NONE;
}

// The attribute of an address inside an allocation.
CUresult attribute_of(const Allocation& a, CUdeviceptr address, CUpointer_attribute attribute,
                      void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put<CUcontext>(data, a.owner ? a.owner->handle() : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, memory_type(a));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host_accessible(a)) return CUDA_ERROR_INVALID_VALUE;
      return put<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned>(data, a.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<unsigned long long>(data, a.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<unsigned>(data, a.kind == MemoryKind::kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, ordinal_of(a));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned>(data, a.kind == MemoryKind::kDevice);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: {
      CUdeviceptr base = a.address;
      size_t bytes = a.bytes;
      if (a.kind == MemoryKind::kMapped) find_reservation(address, &base, &bytes);
      return put<CUdeviceptr>(data, base);
    }
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: {
      CUdeviceptr base = a.address;
      size_t bytes = a.bytes;
      if (a.kind == MemoryKind::kMapped) find_reservation(address, &base, &bytes);
      return put<size_t>(data, bytes);
    }
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<unsigned long long>(data, handle_types(a));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<unsigned>(data, a.device != nullptr);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put<unsigned>(data, access_flags(a));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put<CUmemoryPool>(data, a.pool ? a.pool->handle() : nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put<size_t>(data, a.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put<CUdeviceptr>(data, a.address);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<unsigned long long>(data, a.physical ? a.physical->id : uint64_t{a.id});
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      // Tokens are for kernel drivers, which softgpu does not have. The values are those of an
      // H100.
      if (memory_type(a) != CU_MEMORYTYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      return put<CUDA_POINTER_ATTRIBUTE_P2P_TOKENS>(data, {0, 0xfe00});
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The answer of cuPointerGetAttributes for an address unknown to the driver.
CUresult attribute_of_unknown(CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_NOT_SUPPORTED;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<uint64_t>(data, 0);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  if (std::shared_ptr<Allocation> allocation = memory_registry().find(address)) {
    // Graph memory is unknown before a launch allocates it and after it is freed, as on an H200.
    // `freeing` is true in both cases.
    if (allocation->kind == MemoryKind::kGraph && allocation->freeing) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute_of(*allocation, address, attribute, data);
  }
  return CUDA_ERROR_INVALID_VALUE;  // also for reserved addresses without a mapping
}

// Unlike cuPointerGetAttribute, accepts every address. For an unknown address, most attributes are
// 0.
CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (count == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> allocation = memory_registry().find(address);
  for (unsigned i = 0; i < count; ++i) {
    if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (allocation) {
      result = attribute_of(*allocation, address, attributes[i], data[i]);
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
      result = put<CUdeviceptr>(data[i], address);  // as driver 580 does
    }
    if (result == CUDA_ERROR_INVALID_VALUE) result = attribute_of_unknown(attributes[i], data[i]);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                       CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> allocation = memory_registry().find(address);
  if (!allocation || !allocation->device) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind == MemoryKind::kMapped) return CUDA_ERROR_NOT_SUPPORTED;
  allocation->sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
