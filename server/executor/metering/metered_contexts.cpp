// Overrides of a metered driver for contexts (the memory that the driver allocates per context, and
// the memory that ends with a context) and for priorities.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/executor/metering/meters.h"
#include "server/executor/objects/context_guard.h"

namespace rcuda::server {
namespace {

// The most bytes that are booked for a context. Its measured size may be too large, because other
// processes may allocate memory while it is created.
constexpr uint64_t kLargestContext = 1u << 30;

uint64_t free_bytes(const api::DriverTable& driver) {
  size_t free = 0, total = 0;
  return driver.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

// The free bytes of a device, also if none of its contexts is current.
uint64_t free_bytes_of(const api::DriverTable& driver, CUdevice device) {
  const ContextGuard inside(driver, primary_context(driver, device));
  return inside.ok() ? free_bytes(driver) : 0;
}

// Limits the priority in an attribute of a stream, a node or a launch. The attributes of all three
// have the same type.
CUlaunchAttributeValue limited(const Meters& meters, CUlaunchAttributeID attribute,
                               CUlaunchAttributeValue value) {
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value.priority = meters.limited(value.priority);
  return value;
}

}  // namespace

// The heap of kernels' malloc(), and the buffer of their printf(). Their sizes are booked when a
// program sets them. The driver's default sizes are not booked.
CUresult meters_cuCtxSetLimit(Meters& meters, CUlimit limit, size_t value) {
  Bookings* const booked = limit == CU_LIMIT_MALLOC_HEAP_SIZE   ? &meters.heaps
                           : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? &meters.printf_buffers
                                                                : nullptr;
  if (!booked) return meters.driver.cuCtxSetLimit(limit, value);
  MemoryMeter::Place place;
  RCUDA_RETURN_IF_CUDA_ERROR(meters.memory.current(&place));
  const auto context = number_of(place.context);
  const auto before = booked->remove(context).value_or(Bookings::Booking{place, 0});
  const uint64_t growth = value > before.bytes ? value - before.bytes : 0;
  const bool fits = meters.memory.take(place.device, growth);
  const CUresult result =
      fits ? meters.driver.cuCtxSetLimit(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    meters.memory.give_back(place.device, before.bytes + growth - value);
    booked->put(context, {place, value});
  } else {
    if (fits) meters.memory.give_back(place.device, growth);
    booked->put(context, before);
  }
  return result;
}

// No call reports the size of a context. So the size is the decrease of the device's free memory.
CUresult meters_cuCtxCreate_v2(Meters& meters, CUcontext* context, unsigned flags,
                               CUdevice device) {
  if (!meters.limits) return meters.driver.cuCtxCreate_v2(context, flags, device);
  const uint64_t before = free_bytes_of(meters.driver, device);
  RCUDA_RETURN_IF_CUDA_ERROR(meters.driver.cuCtxCreate_v2(context, flags, device));
  const uint64_t after = std::min(free_bytes(meters.driver), before);
  const uint64_t bytes = std::min(before - after, kLargestContext);
  bool fits = meters.memory.take(device, bytes);
  if (fits && !meters.libraries.add(*context, device)) {
    meters.memory.give_back(device, bytes);
    fits = false;
  }
  if (!fits) {
    meters.driver.cuCtxDestroy_v2(*context);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  meters.contexts.put(number_of(*context), {{device, *context}, bytes});
  return CUDA_SUCCESS;
}

void Meters::end_context(CUcontext context) {
  stream_frees.give_all_of(context, allocations);
  for (Bookings* bookings : {&allocations, &arrays, &modules, &contexts, &heaps, &printf_buffers}) {
    bookings->give_all_of(context);
  }
  libraries.end(context);
  pools.refresh();
  graphs.refresh();
}

CUresult meters_cuDevicePrimaryCtxReset_v2(Meters& meters, CUdevice device) {
  const api::DriverTable& driver = meters.driver;
  const CUcontext context = primary_context(driver, device);
  const CUresult result = driver.cuDevicePrimaryCtxReset_v2(device);
  if (context && result == CUDA_SUCCESS) meters.end_context(context);
  return result;
}

// ---- priorities --------------------------------------------------------------------------------

// A lower number is a higher priority.
int Meters::limited(int priority) const {
  int least = 0, greatest = 0;
  if (driver.cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS) return 0;
  return std::max(priority, least - static_cast<int>(std::min<uint32_t>(priorities, 1000)));
}

CUresult meters_cuStreamSetAttribute(Meters& meters, CUstream stream, CUstreamAttrID attribute,
                                     const CUstreamAttrValue* value) {
  const CUstreamAttrValue allowed = limited(meters, attribute, *value);
  return meters.driver.cuStreamSetAttribute(stream, attribute, &allowed);
}

CUresult meters_cuGraphKernelNodeSetAttribute(Meters& meters, CUgraphNode node,
                                              CUkernelNodeAttrID attribute,
                                              const CUkernelNodeAttrValue* value) {
  const CUkernelNodeAttrValue allowed = limited(meters, attribute, *value);
  return meters.driver.cuGraphKernelNodeSetAttribute(node, attribute, &allowed);
}

CUresult meters_cuLaunchKernelEx(Meters& meters, const CUlaunchConfig* config, CUfunction function,
                                 void** parameters, void** extra) {
  CUlaunchConfig allowed = *config;
  std::vector<CUlaunchAttribute> attributes(config->attrs, config->attrs + config->numAttrs);
  for (CUlaunchAttribute& attribute : attributes) {
    attribute.value = limited(meters, attribute.id, attribute.value);
  }
  allowed.attrs = attributes.data();
  return meters.driver.cuLaunchKernelEx(&allowed, function, parameters, extra);
}

}  // namespace rcuda::server
