// cuMemAlloc, cuMemFree, host and managed memory, and queries about ranges of addresses.

#include <cstdint>

#include <cuda.h>

#include "common/base/mappings.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pools.h"

using namespace softgpu::driver;

namespace {

constexpr size_t kPitchAlignment = 512;
constexpr size_t kMaxPitch = 2147483647;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH
constexpr unsigned kHostAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kHostRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                        CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

// enter(), for calls that a capture on this thread may forbid.
CUresult enter_unsafe(Context** context) {
  if (CUresult result = enter(context)) return result;
  return check_unsafe_call();
}

// enter_unsafe() for calls that free memory: no context needs to be current, but a destroyed
// current context is an error.
CUresult enter_to_free(Context** context) {
  *context = nullptr;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_CONTEXT) return result;
  return check_unsafe_call();
}

// A free waits for work that may still use the memory: the work of the owning context and of the
// current context. A free of pool memory does not wait, as with driver 580 on an H200.
CUresult wait_for_users(Context* current, const Allocation& allocation) {
  if (allocation.pool) return CUDA_SUCCESS;
  if (allocation.owner && allocation.owner != current && allocation.owner->alive()) {
    if (CUresult result = allocation.owner->synchronize()) return result;
  }
  return current ? current->synchronize() : CUDA_SUCCESS;
}

CUresult free_at(Context* context, CUdeviceptr address, bool (*accept)(const Allocation&)) {
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(address);
  if (!allocation || !accept(*allocation)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = wait_for_users(context, *allocation)) return result;
  std::shared_ptr<Allocation> gone = memory_registry().remove(
      address, [&](const Allocation& a) { return &a == allocation.get() && accept(a); });
  if (!gone) return CUDA_ERROR_INVALID_VALUE;  // another thread has freed it
  release_memory(*gone);
  return CUDA_SUCCESS;
}

bool can_be_pinned(const void* pointer, size_t bytes, unsigned flags) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (bytes > UINTPTR_MAX - kPageBytes - begin) return false;
  const uintptr_t end = round_up(begin + bytes, kPageBytes);
  const bool writes = (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0;
  const uintptr_t first = begin / kPageBytes * kPageBytes;
  return rcuda::pinning_of(rcuda::mappings_in(first, end), first, end, writes) ==
         rcuda::Pinning::kPossible;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  const size_t all = context->device().total_bytes();
  if (total) *total = all;
  if (free) *free = all - context->device().used_bytes();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Context* context = nullptr;
  if (CUresult result = enter_unsafe(&context)) return result;
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *address = 0;
    return CUDA_ERROR_INVALID_VALUE;
  }
  return allocate_device_memory(*context, bytes, MemoryKind::kDevice, address);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                    size_t height, unsigned int element_bytes) {
  Context* context = nullptr;
  if (CUresult result = enter_unsafe(&context)) return result;
  if (!address || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t bytes = 0;
  if (width > kMaxPitch) return CUDA_ERROR_INVALID_VALUE;
  const size_t row = round_up(width, kPitchAlignment);
  if (__builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult result = allocate_device_memory(*context, bytes, MemoryKind::kDevice, address)) {
    return result;
  }
  *pitch = row;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter_to_free(&context)) return result;
  if (address == 0) return CUDA_SUCCESS;
  const std::shared_ptr<Allocation> found = memory_registry().find_base(address);
  if (found && found->kind == MemoryKind::kGraph) {
    return free_graph_memory(context ? *context : found->device->primary(), *found);
  }
  return free_at(context, address, [](const Allocation& a) {
    switch (a.kind) {
      case MemoryKind::kDevice:
      case MemoryKind::kPool:
        return !a.freeing;
      case MemoryKind::kManaged:
        return !a.of_module;
      case MemoryKind::kImported:
        return a.pool != nullptr && !a.freeing;
      default:
        return false;
    }
  });
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter_unsafe(&context)) return result;
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *address = 0;
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return allocate_host_memory(*context, bytes, MemoryKind::kManaged, flags, address);
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter_unsafe(&context)) return result;
  if (!pointer || (flags & ~kHostAllocFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  *pointer = nullptr;
  if (bytes == 0) return CUDA_SUCCESS;
  CUdeviceptr address = 0;
  if (CUresult result = allocate_host_memory(*context, bytes, MemoryKind::kHost, flags, &address)) {
    return result;
  }
  *pointer = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
  Context* context = nullptr;
  if (CUresult result = enter_to_free(&context)) return result;
  if (!pointer) return CUDA_SUCCESS;  // as driver 580 does
  return free_at(context, reinterpret_cast<CUdeviceptr>(pointer),
                 [](const Allocation& a) { return a.kind == MemoryKind::kHost; });
}

CUresult CUDAAPI cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter_unsafe(&context)) return result;
  if (!pointer || bytes == 0 || (flags & ~kHostRegisterFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!can_be_pinned(pointer, bytes, flags)) return CUDA_ERROR_INVALID_VALUE;
  const auto known = memory_registry().find(reinterpret_cast<CUdeviceptr>(pointer));
  if (known && known->kind == MemoryKind::kHost) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = std::make_shared<Allocation>();
  allocation->address = reinterpret_cast<CUdeviceptr>(pointer);
  allocation->bytes = bytes;
  allocation->kind = MemoryKind::kRegistered;
  allocation->owner = context;
  allocation->flags = flags;
  allocation->id = next_memory_id();
  return memory_registry().add(std::move(allocation)) ? CUDA_SUCCESS
                                                      : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult CUDAAPI cuMemHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  return cuMemHostRegister_v2(pointer, bytes, flags);
}

CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
  Context* context = nullptr;
  if (CUresult result = enter_to_free(&context)) return result;
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  if (!memory_registry().find(address)) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  return free_at(context, address,
                 [](const Allocation& a) { return a.kind == MemoryKind::kRegistered; });
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer,
                                              unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!address || !pointer || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> allocation =
      memory_registry().find(reinterpret_cast<CUdeviceptr>(pointer));
  if (!allocation ||
      (allocation->kind != MemoryKind::kHost && allocation->kind != MemoryKind::kRegistered)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!flags || !pointer) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> allocation =
      memory_registry().find(reinterpret_cast<CUdeviceptr>(pointer));
  if (!allocation ||
      (allocation->kind != MemoryKind::kHost && allocation->kind != MemoryKind::kRegistered)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // With unified addressing, all pinned memory is mapped.
  *flags = allocation->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation = memory_registry().find(address);
  if (!allocation || (allocation->kind == MemoryKind::kMapped && allocation->readable == 0 &&
                      !allocation->on_host())) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base) *base = allocation->address;
  if (bytes) *bytes = allocation->bytes;
  return CUDA_SUCCESS;
}

// Only a kernel driver can make a dma-buf, and softgpu has none.
CUresult CUDAAPI cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes,
                                               CUmemRangeHandleType, unsigned long long) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || bytes == 0 || !memory_registry().covered(address, bytes, nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
