// Meters: what is booked for a session, by the kind of memory, and a driver whose functions book
// it. Functions that allocate memory for the program book it with the session's Quota, and fail
// with CUDA_ERROR_OUT_OF_MEMORY if it does not fit. cuMemGetInfo tells the quota. Priorities above
// the session's limit are lowered to it, as the driver lowers those above its own. Most overrides
// are rows of api/table/driver_overrides.toml, the others are in metered_*.cpp.
//
// A session calls the driver through table() for what its program asks for. What the worker
// allocates for itself comes from the plain table, and is not counted. Without a limit memory is
// counted as well, but nothing that costs more than questions to the driver is done for that:
// variables of code and contexts are left out, and memory freed in stream order counts as free at
// once.
//
// Only one session with a limit may exist in a process at a time (api/driver_decorator.h). A worker
// serves one. Executor thread only. Blocking: as the driver's own; before a refusal they trim the
// session's pools.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "api/driver_decorator.h"
#include "api/driver_overrides.h"
#include "api/driver_table.h"
#include "common/cuda/return_if_error.h"
#include "common/messages/work.h"
#include "server/executor/metering/graph_meter.h"
#include "server/executor/metering/library_meter.h"
#include "server/executor/metering/memory_meter.h"
#include "server/executor/metering/physical_meter.h"
#include "server/executor/metering/pool_meter.h"
#include "server/executor/metering/stream_frees.h"
#include "server/executor/objects/objects.h"
#include "server/names/exported_names.h"
#include "server/quota/limits.h"
#include "server/quota/quota.h"

namespace rcuda::server {

struct Meters {
  // `plain` and `done`, where the peak of the memory is noted, outlive this object.
  Meters(const api::DriverTable& plain, const std::vector<SessionDevice>& devices,
         const std::shared_ptr<Quota>& quota, const SessionLimits& session_limits,
         wire::Work* done);
  Meters(const Meters&) = delete;
  Meters& operator=(const Meters&) = delete;

  // For what the program asks for.
  const api::DriverTable& table() const { return metered ? metered->table() : driver; }
  // Imports physical memory, of `device` unless it is the host's. It is booked before the driver is
  // asked.
  CUresult import_allocation(CUmemGenericAllocationHandle* handle, void* descriptor,
                             const ExportOrigin& origin, CUdevice device);

  // Gives back what the driver has released.
  void refresh() {
    stream_frees.refresh(allocations);
    pools.refresh();
    graphs.refresh();
  }
  // The same after the driver has been told to release what it only keeps for reuse.
  void reclaim();
  // Books memory of another process that has been mapped.
  CUresult book_imported(CUdeviceptr address);
  // Books what the driver has reserved for a new executable graph.
  CUresult book_executable(CUgraphExec executable, CUgraph graph);
  // The context has been destroyed or reset.
  void end_context(CUcontext context);
  // The priority, or the session's highest one.
  int limited(int priority) const;

  const api::DriverTable& driver;  // not metered
  const bool limits;               // memory; else it is only counted, as cheaply as that can be
  MemoryMeter memory;
  Bookings allocations;
  Bookings arrays;
  Bookings modules;
  LibraryMeter libraries;
  Bookings contexts;
  Bookings heaps;           // of contexts
  Bookings printf_buffers;  // of contexts
  PoolMeter pools;
  StreamFrees stream_frees;
  PhysicalMeter physical;
  GraphMeter graphs;
  uint32_t priorities = 0;  // above the lowest, if limit_priorities() was called
  // Called before pools and graphs are trimmed, to show the driver which frees are over: it trims
  // no others (pool_frees.h). False: nothing may be trimmed now, because that could wait for the
  // device.
  std::function<bool()> before_trimming;
  std::optional<DriverDecorator<Meters>> metered;
};

// The most that a driver takes for a pitched allocation.
uint64_t pitched_bytes(size_t width, size_t height);
// The bytes of an array. The driver does not report that, so its elements count.
uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& array);
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels);

// Calls `make`, which makes an object of `bytes` in the current context and writes its number to
// `*object`, and books it.
template <typename Object, typename Make>
CUresult make_booked(Meters& meters, Bookings& bookings, uint64_t bytes, const Object* object,
                     Make make) {
  MemoryMeter::Place place;
  RCUDA_RETURN_IF_CUDA_ERROR(meters.memory.current(&place));
  if (!meters.memory.take(place.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = meters.memory.with_room(place.device, bytes, make);
  if (result == CUDA_SUCCESS) {
    bookings.put(number_of(*object), {place, bytes});
  } else {
    meters.memory.give_back(place.device, bytes);
  }
  return result;
}

// Calls `end`, which ends an object.
template <typename Object, typename End>
CUresult end_booked(Bookings& bookings, Object object, End end) {
  // Removed first: the driver may give the number to a new object as soon as this one has ended.
  const auto booking = bookings.remove(number_of(object));
  const CUresult result = end();
  if (!booking) return result;
  if (result == CUDA_SUCCESS) {
    bookings.give(*booking);
  } else {
    bookings.put(number_of(object), *booking);
  }
  return result;
}

}  // namespace rcuda::server
