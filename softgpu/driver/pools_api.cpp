// cuMemPool*, cuMemAllocAsync and cuMemFreeAsync.
#include <algorithm>
#include <cstring>

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "common/cuda/known_values.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/pools.h"
#include "softgpu/driver/shared_file.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

// The content of a CUmemPoolPtrExportData.
struct ExportedPointer {
  uint64_t magic = 0;
  uint64_t file_offset = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(ExportedPointer) <= sizeof(CUmemPoolPtrExportData));
constexpr uint64_t kPointerMagic = 0x7265'746e'696f'7031;

// The stream that MemoryPool::allocate() and free_queued() get. Null for a thread's default stream:
// memory whose free is queued there is reused only after the free has executed.
CUstream order_key(Stream& stream) {
  return stream.kind() == Stream::Kind::kPerThread ? nullptr : stream.handle();
}

// Checks whether a capture forbids the call, before memory is allocated or marked as freed.
CUresult check_immediate(Stream& stream) {
  if (CUresult result = check_unsafe_call()) return result;
  return refuse_implicit(stream);
}

CUresult allocate(CUdeviceptr* address, size_t bytes, CUstream handle,
                  std::shared_ptr<MemoryPool> pool) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  *address = 0;
  if (bytes == 0) return CUDA_SUCCESS;
  Context& owner = stream->context().owner();
  if (!pool) pool = current_pool(owner.device());
  AllocateOperation operation;
  if (is_capturing(handle)) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {owner.device().ordinal()}};
    params.bytesize = bytes;
    if (CUresult result =
            reserve_graph_memory(owner, bytes, pool->writable_devices(), &params.dptr)) {
      return result;
    }
    operation.address = params.dptr;
    operation.memory = std::make_shared<GraphMemory>(params);
  } else if (CUresult result = check_immediate(*stream)) {
    return result;
  } else if (CUresult result =
                 pool->allocate(owner, bytes, order_key(*stream), &operation.address)) {
    return result;
  }
  const CUdeviceptr allocated = operation.address;
  const bool pooled = operation.memory == nullptr;
  if (CUresult result = submit(*stream, std::move(operation))) {
    const auto is_pools = [](const Allocation& a) { return a.kind == MemoryKind::kPool; };
    if (pooled) {
      if (const auto gone = memory_registry().remove(allocated, is_pools)) release_memory(*gone);
    }
    return result;
  }
  *address = allocated;
  return CUDA_SUCCESS;
}

CUresult find_pool(CUmemoryPool handle, std::shared_ptr<MemoryPool>* pool) {
  if (CUresult result = check_initialized()) return result;
  *pool = MemoryPool::from_handle(handle);
  return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool is_pool_type(CUmemAllocationType type) {
  return type == CU_MEM_ALLOCATION_TYPE_PINNED || type == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

// Pools exist on devices only, with pinned allocation type.
CUresult find_location(const CUmemLocation* location, CUmemAllocationType type, Device** device) {
  if (CUresult result = check_initialized()) return result;
  if (!location || !is_pool_type(type) || location->type == CU_MEM_LOCATION_TYPE_INVALID ||
      !rcuda::cuda::is_known(location->type)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  *device = device_at(location->id);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, stream, nullptr);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool handle,
                                         CUstream stream) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  if (pool->imported()) return CUDA_ERROR_INVALID_VALUE;
  return allocate(address, bytes, stream, std::move(pool));
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(handle, &context, &stream)) return result;
  if (address == 0) return CUDA_SUCCESS;
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind == MemoryKind::kManaged) return CUDA_ERROR_NOT_SUPPORTED;
  const bool pooled = allocation->kind == MemoryKind::kPool;
  const bool graph = allocation->kind == MemoryKind::kGraph;
  if (!pooled && !graph && allocation->kind != MemoryKind::kDevice &&
      !(allocation->kind == MemoryKind::kImported && allocation->pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_capturing(handle)) {
    if (!graph) return CUDA_ERROR_INVALID_VALUE;  // softgpu's graphs free only graph memory
    return submit(*stream, FreeOperation{address});
  }
  if (CUresult result = check_immediate(*stream)) return result;
  if (allocation->freeing.exchange(true)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t id = allocation->id;
  if (pooled) {
    allocation->pool->free_queued(allocation, stream->context(), order_key(*stream));
  }
  const CUresult result = submit(*stream, FreeOperation{address, id});
  if (result != CUDA_SUCCESS) {
    if (pooled) {
      allocation->pool->free_refused(*allocation);
    } else {
      allocation->freeing = false;
    }
  }
  return result;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  if (CUresult result = check_initialized()) return result;
  if (!handle || !properties) return CUDA_ERROR_INVALID_VALUE;
  Device* device = nullptr;
  if (CUresult result = find_location(&properties->location, properties->allocType, &device)) {
    return result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : result;
  }
  if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return properties->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED
                                                               : CUDA_ERROR_INVALID_VALUE;
  }
  rcuda::UniqueFd file;
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    SharedFileHeader header;
    header.kind = SharedFileKind::kPool;
    header.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
    header.device = device->uuid();
    header.bytes = kArenaFileBytes;
    file = make_shared_file("softgpu-pool", header);
    if (!file) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto pool = std::make_shared<MemoryPool>(*device, properties->handleTypes, properties->maxSize,
                                           std::move(file));
  *handle = pool->handle();
  handle_table<MemoryPool>().insert(std::move(pool));
  return CUDA_SUCCESS;
}

// Memory that is still allocated keeps the pool alive without its handle.
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<MemoryPool> pool = handle_table<MemoryPool>().remove(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;  // also for default pools
  pool->retire();
  if (current_pool(pool->device()) == pool) {
    set_current_pool(pool->device(), default_pool(pool->device()));
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  pool->trim(keep_bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  return value ? pool->set_attribute(attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  return value ? pool->attribute(attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* list,
                                    size_t count) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  if (!list) return CUDA_ERROR_INVALID_VALUE;
  uint32_t readable = pool->readable_devices(), writable = pool->writable_devices();
  for (size_t i = 0; i < count; ++i) {
    if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    Device* device = device_at(list[i].location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    const uint32_t bit = 1u << device->ordinal();
    switch (list[i].flags) {
      case CU_MEM_ACCESS_FLAGS_PROT_NONE:
        // A device cannot be denied access to its own pool.
        if (device == &pool->device()) return CUDA_ERROR_INVALID_DEVICE;
        readable &= ~bit;
        writable &= ~bit;
        break;
      case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
        readable |= bit;
        writable |= bit;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  pool->set_access(readable, writable);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                    CUmemLocation* location) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Device* device = device_at(location->id);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *flags = pool->writable_devices() & 1u << device->ordinal() ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                              : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                        CUmemAllocationType type) {
  Device* device = nullptr;
  if (CUresult result = find_location(location, type, &device)) return result;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = default_pool(*device)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                 CUmemAllocationType type) {
  Device* device = nullptr;
  if (CUresult result = find_location(location, type, &device)) return result;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = current_pool(*device)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                 CUmemoryPool handle) {
  Device* device = nullptr;
  if (CUresult result = find_location(location, type, &device)) return result;
  return cuDeviceSetMemPool(device->ordinal(), handle);
}

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  if (!shareable || flags != 0 || pool->imported() ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(pool->handle_types() & type)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int copy = ::fcntl(pool->arena().file(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = copy;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool* handle, void* shareable,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags) {
  if (CUresult result = check_initialized()) return result;
  if (!handle || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  SharedFileHeader header;
  if (!read_shared_file(file, &header) || header.kind != SharedFileKind::kPool) {
    return CUDA_ERROR_UNKNOWN;
  }
  Device* device = device_with_uuid(header.device);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  rcuda::UniqueFd copy(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!copy) return CUDA_ERROR_OPERATING_SYSTEM;
  auto pool = std::make_shared<MemoryPool>(*device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0,
                                           std::move(copy), /*imported=*/true);
  *handle = pool->handle();
  handle_table<MemoryPool>().insert(std::move(pool));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(address);
  if (!data || !allocation || allocation->kind != MemoryKind::kPool ||
      allocation->pool->handle_types() == CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const ExportedPointer exported{kPointerMagic, allocation->block.file_offset, allocation->bytes};
  std::memset(data, 0, sizeof *data);
  std::memcpy(data, &exported, sizeof exported);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool handle,
                                        CUmemPoolPtrExportData* data) {
  std::shared_ptr<MemoryPool> pool;
  if (CUresult result = find_pool(handle, &pool)) return result;
  ExportedPointer exported;
  if (!address || !data || !pool->imported()) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(static_cast<void*>(&exported), data, sizeof exported);
  if (exported.magic != kPointerMagic || exported.bytes == 0 ||
      exported.file_offset > kArenaFileBytes ||
      exported.bytes > kArenaFileBytes - exported.file_offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t before = exported.file_offset % kPageBytes;
  const size_t mapped_bytes = round_up(before + exported.bytes, kPageBytes);
  void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        pool->arena().file(), static_cast<off_t>(exported.file_offset - before));
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = std::make_shared<Allocation>();
  allocation->mapping = reinterpret_cast<uint64_t>(mapped);
  allocation->mapping_bytes = mapped_bytes;
  allocation->address = allocation->mapping + before;
  allocation->bytes = exported.bytes;
  allocation->kind = MemoryKind::kImported;
  allocation->device = &pool->device();
  allocation->id = next_memory_id();
  allocation->pool = std::move(pool);
  *address = allocation->address;
  memory_registry().add(std::move(allocation));
  return CUDA_SUCCESS;
}

}  // extern "C"
