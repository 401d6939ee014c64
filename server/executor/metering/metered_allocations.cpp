// Entries of a metered table for plain and managed memory, and for the ends of contexts.
#include <algorithm>
#include <cstdint>

#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kLargestPitchUnit = 512;

CUresult alloc(CUdeviceptr* address, size_t bytes) {
  return make_booked(meters().allocations, held_by(bytes), address,
                     [&] { return meters().driver.cuMemAlloc_v2(address, bytes); });
}

CUresult alloc_pitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                     unsigned element) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(rounded(width, kLargestPitchUnit), height, &bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return make_booked(meters().allocations, held_by(bytes), address, [&] {
    return meters().driver.cuMemAllocPitch_v2(address, pitch, width, height, element);
  });
}

// Counted on the current device, wherever its pages move.
CUresult alloc_managed(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return make_booked(meters().allocations, held_by(bytes), address,
                     [&] { return meters().driver.cuMemAllocManaged(address, bytes, flags); });
}

CUresult free(CUdeviceptr address) {
  const CUresult result = end_booked(meters().allocations, address,
                                     [&] { return meters().driver.cuMemFree_v2(address); });
  meters().refresh();  // it may have been a pool's
  return result;
}

CUresult get_info(size_t* free, size_t* total) {
  Meters& all = meters();
  all.refresh();
  const CUresult result = all.driver.cuMemGetInfo_v2(free, total);
  MemoryMeter::Place place;
  if (result != CUDA_SUCCESS || all.memory.current(&place) != CUDA_SUCCESS) return result;
  const auto room = all.memory.room(place.device);
  if (!room) return result;
  if (free) *free = std::min<size_t>(*free, room->free);
  if (total) *total = std::min<size_t>(*total, room->limit);
  return result;
}

// The heap of kernels' malloc(), and the buffer of their printf(). Their sizes are booked when a
// program sets them. The driver's own sizes are not.
CUresult set_limit(CUlimit limit, size_t value) {
  Meters& all = meters();
  Bookings* const booked = limit == CU_LIMIT_MALLOC_HEAP_SIZE   ? &all.heaps
                           : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? &all.printf_buffers
                                                                : nullptr;
  if (!booked) return all.driver.cuCtxSetLimit(limit, value);
  MemoryMeter::Place place;
  if (CUresult result = all.memory.current(&place); result != CUDA_SUCCESS) return result;
  const auto context = (uint64_t)place.context;
  const auto before = booked->remove(context).value_or(Bookings::Booking{place, 0});
  const uint64_t growth = value > before.bytes ? value - before.bytes : 0;
  const bool fits = all.memory.take(place.device, growth);
  const CUresult result = fits ? all.driver.cuCtxSetLimit(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    all.memory.give(place.device, before.bytes + growth - value);
    booked->put(context, {place, value});
  } else {
    if (fits) all.memory.give(place.device, growth);
    booked->put(context, before);
  }
  return result;
}

void forget(CUcontext context) {
  meters().stream_frees.give_all_of(context, meters().allocations);
  meters().allocations.give_all_of(context);
  meters().arrays.give_all_of(context);
  meters().heaps.give_all_of(context);
  meters().printf_buffers.give_all_of(context);
  meters().pools.refresh();
  meters().graphs.refresh();
}

CUresult destroy_context(CUcontext context) {
  const CUresult result = meters().driver.cuCtxDestroy_v2(context);
  if (result == CUDA_SUCCESS) forget(context);
  return result;
}

CUresult reset_primary(CUdevice device) {
  const api::DriverTable& driver = meters().driver;
  CUcontext context = nullptr;
  const CUresult found = driver.cuDevicePrimaryCtxRetain(&context, device);
  if (found == CUDA_SUCCESS) driver.cuDevicePrimaryCtxRelease_v2(device);
  const CUresult result = driver.cuDevicePrimaryCtxReset_v2(device);
  if (found == CUDA_SUCCESS && result == CUDA_SUCCESS) forget(context);
  return result;
}

}  // namespace

void meter_allocations(api::DriverTable* table) {
  replace_entry(table->cuMemAlloc_v2, &alloc);
  replace_entry(table->cuMemAllocPitch_v2, &alloc_pitch);
  replace_entry(table->cuMemAllocManaged, &alloc_managed);
  replace_entry(table->cuMemFree_v2, &free);
  replace_entry(table->cuMemGetInfo_v2, &get_info);
  replace_entry(table->cuCtxSetLimit, &set_limit);
}

void meter_contexts(api::DriverTable* table) {
  replace_entry(table->cuCtxDestroy_v2, &destroy_context);
  replace_entry(table->cuDevicePrimaryCtxReset_v2, &reset_primary);
}

}  // namespace rcuda::server
