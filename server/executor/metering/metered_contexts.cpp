// Entries of a metered table for contexts: what a driver takes for them, and what ends with them.
#include <algorithm>
#include <cstdint>

#include "common/cuda/return_if_error.h"
#include "server/executor/metering/meters.h"
#include "server/executor/objects/context_guard.h"

namespace rcuda::server {
namespace {

// Other processes may allocate while a context is made. It counts as no more than this.
constexpr uint64_t kLargestContext = 1u << 30;

uint64_t free_bytes() {
  size_t free = 0, total = 0;
  return meters().driver.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

// Of a device whose contexts need not be current.
uint64_t free_bytes_of(CUdevice device) {
  const api::DriverTable& driver = meters().driver;
  CUcontext primary = nullptr;
  if (driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) return 0;
  uint64_t free = 0;
  if (const ContextGuard inside(driver, primary); inside.ok()) free = free_bytes();
  driver.cuDevicePrimaryCtxRelease_v2(device);
  return free;
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
  RCUDA_RETURN_IF_CUDA_ERROR(all.memory.current(&place));
  const auto context = number_of(place.context);
  const auto before = booked->remove(context).value_or(Bookings::Booking{place, 0});
  const uint64_t growth = value > before.bytes ? value - before.bytes : 0;
  const bool fits = all.memory.take(place.device, growth);
  const CUresult result = fits ? all.driver.cuCtxSetLimit(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    all.memory.give_back(place.device, before.bytes + growth - value);
    booked->put(context, {place, value});
  } else {
    if (fits) all.memory.give_back(place.device, growth);
    booked->put(context, before);
  }
  return result;
}

// No call tells what a context takes, so the device's free memory does.
CUresult create_context(CUcontext* context, unsigned flags, CUdevice device) {
  Meters& all = meters();
  if (!all.limits) return all.driver.cuCtxCreate_v2(context, flags, device);
  const uint64_t before = free_bytes_of(device);
  const CUresult result = all.driver.cuCtxCreate_v2(context, flags, device);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t after = std::min(free_bytes(), before);
  const uint64_t bytes = std::min(before - after, kLargestContext);
  bool fits = all.memory.take(device, bytes);
  if (fits && !all.libraries.add(*context, device)) {
    all.memory.give_back(device, bytes);
    fits = false;
  }
  if (!fits) {
    all.driver.cuCtxDestroy_v2(*context);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  all.contexts.put(number_of(*context), {{device, *context}, bytes});
  return CUDA_SUCCESS;
}

void forget(CUcontext context) {
  meters().stream_frees.give_all_of(context, meters().allocations);
  meters().allocations.give_all_of(context);
  meters().arrays.give_all_of(context);
  meters().modules.give_all_of(context);
  meters().contexts.give_all_of(context);
  meters().libraries.end(context);
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

void meter_contexts(api::DriverTable* table) {
  replace_entry(table->cuCtxCreate_v2, &create_context);
  replace_entry(table->cuCtxSetLimit, &set_limit);
  replace_entry(table->cuCtxDestroy_v2, &destroy_context);
  replace_entry(table->cuDevicePrimaryCtxReset_v2, &reset_primary);
}

}  // namespace rcuda::server
