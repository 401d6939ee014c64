// Pointer queries. The registry has the answers, except those that only the worker knows: the
// current pool of a device, P2P tokens, and cuMemGetAddressRange for mapped memory.

#include <algorithm>

#include <cuda.h>

#include "client/copy/locate.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/session/session.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

bool is_host_memory(const Allocation& allocation) { return allocation.session == nullptr; }

CUcontext context_handle(const Allocation& allocation) {
  const Device* device = Process::get().device(static_cast<CUdevice>(allocation.device));
  if (!device) return nullptr;
  return reinterpret_cast<CUcontext>(
      context_of({device->session, allocation.context, allocation.device}));
}

// Returns the pool of the memory, or null for memory of graphs and other memory without a pool.
CUresult find_pool(const Allocation& allocation, CUmemoryPool* pool) {
  *pool = allocation.pool;
  if (allocation.placement != Placement::kDeviceAsync || allocation.of_graph || *pool) {
    return CUDA_SUCCESS;
  }
  return forward_cuDeviceGetMemPool(pool, static_cast<CUdevice>(allocation.device));
}

// Returns the range that CUDA reports for an address: the allocation, or for mapped memory the
// whole reservation.
Registry::Reserved range_of(const Allocation& allocation) {
  if (allocation.placement == Placement::kMapped) {
    if (const auto reserved = Process::get().memory().reservation(allocation.base)) {
      return *reserved;
    }
  }
  return {allocation.base, allocation.bytes, allocation.session};
}

template <typename T>
CUresult give(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

// Returns the tokens of the worker's driver. They are for kernel drivers, so they are useful only
// on the worker's machine.
CUresult tokens_of(CUdeviceptr address, CUDA_POINTER_ATTRIBUTE_P2P_TOKENS* tokens) {
  unsigned long long token = 0;
  unsigned space = 0;
  const CUresult result = forward_rcuda_p2p_tokens(address, &token, &space);
  if (result == CUDA_SUCCESS) *tokens = {token, space};
  return result;
}

CUresult attribute(void* data, CUpointer_attribute which, CUdeviceptr address) {
  const auto allocation = Process::get().memory().find(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  const bool host = is_host_memory(*allocation);
  const bool managed = is_managed(*allocation);
  const bool reachable = !host || allocation->reachable;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(data, context_handle(*allocation));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give<unsigned>(data, host && !managed ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (!reachable) return CUDA_ERROR_INVALID_VALUE;
      return give<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !managed) return CUDA_ERROR_INVALID_VALUE;
      return give<void*>(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give<unsigned long long>(data, allocation->buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give<unsigned>(data, managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give<int>(data, static_cast<int>(allocation->device));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give<CUdeviceptr>(data, range_of(*allocation).base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give<size_t>(data, range_of(*allocation).bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give<unsigned long long>(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return give<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return find_pool(*allocation, static_cast<CUmemoryPool*>(data));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return give<size_t>(data, allocation->bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return give<CUdeviceptr>(data, allocation->base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return give<unsigned long long>(data, allocation->buffer_id);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give<unsigned>(data, allocation->sync_memops);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return give<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      if (host && !managed) return CUDA_ERROR_INVALID_VALUE;
      return tokens_of(address, static_cast<CUDA_POINTER_ATTRIBUTE_P2P_TOKENS*>(data));
    default:
      // Newer runtimes also query attributes that this library does not know. For example, cudart
      // 13.5 queries attribute 22.
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Writes the value that cuPointerGetAttributes() returns for an attribute that the memory lacks, or
// for memory that is unknown to CUDA.
CUresult give_nothing(void* data, CUpointer_attribute which) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give<uint64_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give<int>(data, CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return give<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // an unknown attribute
  }
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which, CUdeviceptr address) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  return attribute(data, which, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** data,
                                CUdeviceptr address) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (count == 0 || !which || !data) return CUDA_ERROR_INVALID_VALUE;
  if (std::find(data, data + count, nullptr) != data + count) return CUDA_ERROR_INVALID_VALUE;
  const bool is_known = Process::get().memory().find(address).has_value();
  for (unsigned i = 0; i < count; ++i) {
    if (attribute(data[i], which[i], address) == CUDA_SUCCESS) continue;
    // Like driver 580, returns an unknown address as its own host pointer, because it may be host
    // memory.
    const bool is_host = which[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && !is_known;
    RCUDA_RETURN_IF_CUDA_ERROR(is_host ? give<CUdeviceptr>(data[i], address)
                                       : give_nothing(data[i], which[i]));
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr address) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto allocation = Process::get().memory().find(address);
  if (!value || !allocation || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A driver refuses to set the attribute for memory of cuMemMap (580 on an H100).
  if (Process::get().memory().reservation(address)) return CUDA_ERROR_NOT_SUPPORTED;
  Process::get().memory().update(allocation->base, [value](Allocation& found) {
    found.sync_memops = *static_cast<const unsigned*>(value);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  const auto allocation = Process::get().memory().find(address);
  if (!allocation) return CUDA_ERROR_NOT_FOUND;
  // Ask the worker, because a driver does not find a mapping to which no device has access.
  if (allocation->placement == Placement::kMapped && allocation->session == route.session) {
    CUdeviceptr first = 0;
    size_t size = 0;
    RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemGetAddressRange_v2(&first, &size, address));
    // For mapped host memory, a driver returns address 0 (580 on an H200).
    if (first && !route.session->accepts(first, size, "mapped memory")) return kSessionLost;
    if (base) *base = first;
    if (bytes) *bytes = size;
    return CUDA_SUCCESS;
  }
  if (base) *base = allocation->base;
  if (bytes) *bytes = allocation->bytes;
  return CUDA_SUCCESS;
}

}  // extern "C"
