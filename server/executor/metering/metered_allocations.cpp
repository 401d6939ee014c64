// Entries of a metered table for plain and managed memory, and for questions about free memory.
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

}  // namespace

void meter_allocations(api::DriverTable* table) {
  replace_entry(table->cuMemAlloc_v2, &alloc);
  replace_entry(table->cuMemAllocPitch_v2, &alloc_pitch);
  replace_entry(table->cuMemAllocManaged, &alloc_managed);
  replace_entry(table->cuMemFree_v2, &free);
  replace_entry(table->cuMemGetInfo_v2, &get_info);
}

}  // namespace rcuda::server
