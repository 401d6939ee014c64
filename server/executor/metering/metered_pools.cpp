// Entries of a metered table for memory of pools, and for memory that is freed in stream order.
#include <cstdint>

#include "common/cuda/return_if_error.h"
#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

// An allocation in a stream that captures becomes a node of a graph.
// The stream may be one of another device than the current context.
CUmemoryPool pool_of(CUdeviceptr address, CUmemoryPool otherwise) {
  CUmemoryPool pool = nullptr;
  const CUresult result =
      meters().driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address);
  return result == CUDA_SUCCESS && pool ? pool : otherwise;
}

// Nothing is limited: only what the pool holds now is looked at. A capture's memory has no pool.
void count(CUdeviceptr address) {
  meters().pools.know_defaults();
  if (const CUmemoryPool pool = pool_of(address, nullptr)) meters().pools.book_growth(pool);
}

// `pool`: null if the memory comes from the current pool of the stream's device.
template <typename Allocate>
CUresult allocate(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream,
                  Allocate allocate_now) {
  Meters& all = meters();
  if (!all.limits) {
    const CUresult result = allocate_now();
    if (result == CUDA_SUCCESS) count(*address);
    return result;
  }
  if (captures(stream)) return allocate_now();
  MemoryMeter::Place place;
  RCUDA_RETURN_IF_CUDA_ERROR(all.memory.current(&place));
  if (!pool) pool = all.pools.current_of(place.device);
  if (!all.pools.may_hold(pool, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = allocate_now();
  if (result != CUDA_SUCCESS || all.pools.book_growth(pool_of(*address, pool))) return result;
  all.driver.cuMemFreeAsync(*address, stream);
  *address = 0;
  all.reclaim();
  all.memory.warn(place.device, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult alloc_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, nullptr, stream,
                  [&] { return meters().driver.cuMemAllocAsync(address, bytes, stream); });
}

CUresult alloc_from_pool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate(address, bytes, pool, stream, [&] {
    return meters().driver.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  });
}

CUresult free_async(CUdeviceptr address, CUstream stream) {
  Meters& all = meters();
  const auto booking = all.allocations.remove(address);
  const CUresult result = all.driver.cuMemFreeAsync(address, stream);
  if (!booking) return result;
  if (result == CUDA_SUCCESS && !all.limits) {
    all.allocations.give(*booking);
  } else if (result != CUDA_SUCCESS || !all.stream_frees.add(*booking, stream, all.allocations)) {
    all.allocations.put(address, *booking);  // until its context ends
  }
  return result;
}

CUresult destroy_stream(CUstream stream) {
  meters().stream_frees.end_stream(stream);
  return meters().driver.cuStreamDestroy_v2(stream);
}

CUresult create_pool(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = meters().driver.cuMemPoolCreate(pool, properties);
  if (result == CUDA_SUCCESS) meters().pools.know_created(*pool, properties->location);
  return result;
}

CUresult destroy_pool(CUmemoryPool pool) { return meters().pools.destroy(pool); }

CUresult trim_pool(CUmemoryPool pool, size_t keep) {
  const CUresult result = meters().driver.cuMemPoolTrimTo(pool, keep);
  meters().pools.refresh();
  return result;
}

// Programs find pools of the host, and of managed memory, with these two.
CUresult get_default_pool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult result = meters().driver.cuMemGetDefaultMemPool(pool, location, type);
  if (result == CUDA_SUCCESS) meters().pools.know_default(*pool, *location);
  return result;
}

CUresult get_pool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult result = meters().driver.cuMemGetMemPool(pool, location, type);
  if (result == CUDA_SUCCESS) meters().pools.know_default(*pool, *location);
  return result;
}

// The memory outlives the process that exported it.
CUresult import_pointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  Meters& all = meters();
  const CUresult result = all.driver.cuMemPoolImportPointer(address, pool, data);
  if (result != CUDA_SUCCESS) return result;
  return book_imported(*address, [&] { all.driver.cuMemFree_v2(*address); });
}

// Calls that make the pools release what was freed.
CUresult synchronize_stream(CUstream stream) {
  const CUresult result = meters().driver.cuStreamSynchronize(stream);
  meters().refresh();
  return result;
}

CUresult synchronize_event(CUevent event) {
  const CUresult result = meters().driver.cuEventSynchronize(event);
  meters().refresh();
  return result;
}

}  // namespace

void meter_pools(api::DriverTable* table) {
  replace_entry(table->cuMemAllocAsync, &alloc_async);
  replace_entry(table->cuMemAllocFromPoolAsync, &alloc_from_pool);
  replace_entry(table->cuMemFreeAsync, &free_async);
  replace_entry(table->cuStreamDestroy_v2, &destroy_stream);
  replace_entry(table->cuMemPoolCreate, &create_pool);
  replace_entry(table->cuMemPoolDestroy, &destroy_pool);
  replace_entry(table->cuMemPoolTrimTo, &trim_pool);
  replace_entry(table->cuMemGetDefaultMemPool, &get_default_pool);
  replace_entry(table->cuMemGetMemPool, &get_pool);
  replace_entry(table->cuMemPoolImportPointer, &import_pointer);
  replace_entry(table->cuStreamSynchronize, &synchronize_stream);
  replace_entry(table->cuEventSynchronize, &synchronize_event);
}

}  // namespace rcuda::server
