// Meters: the bookings of a session, by the kind of memory, and a driver table whose functions make
// them. Functions that allocate memory for the program book it with the session's Quota, and fail
// with CUDA_ERROR_OUT_OF_MEMORY if it does not fit. cuMemGetInfo reports the quota. A priority
// above the session's limit is lowered to this limit; the driver does the same with its own limit.
// Most overrides are rows of api/table/driver_overrides.toml, the others are in metered_*.cpp.
//
// The program's calls go through table(). Memory that the worker allocates with the plain table is
// not counted. Without a limit on the session's memory, contexts and the variables of modules are
// not counted, and memory freed in stream order counts as free at once.
//
// Only one session with a limit may exist in a process at a time (api/driver_decorator.h). That
// suffices, because a worker serves one session. Executor thread only. Blocking: as the driver's
// functions; before a refusal they also trim the session's pools.
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
  // The peak of the session's memory is written to `done`. `done` and `plain` outlive this object.
  Meters(const api::DriverTable& plain, const std::vector<SessionDevice>& devices,
         const std::shared_ptr<Quota>& quota, const SessionLimits& session_limits,
         wire::Work* done);
  Meters(const Meters&) = delete;
  Meters& operator=(const Meters&) = delete;

  // For the program's calls.
  const api::DriverTable& table() const { return metered ? metered->table() : driver; }
  // Books physical memory, then imports it. The memory is on `device`, or on the host if `origin`
  // says so. `descriptor`: a file descriptor in the form of a pointer.
  CUresult import_allocation(CUmemGenericAllocationHandle* handle, void* descriptor,
                             const ExportOrigin& origin, CUdevice device);

  // Releases the bookings of memory that the driver has released.
  void refresh() {
    stream_frees.refresh(allocations);
    pools.refresh();
    graphs.refresh();
  }
  // Makes the driver release memory that it only keeps for reuse, then calls refresh().
  void reclaim();
  // Books memory of another process that has been mapped.
  CUresult book_imported(CUdeviceptr address);
  // Books memory that the driver has reserved for a new executable graph.
  CUresult book_executable(CUgraphExec executable, CUgraph graph);
  // To be called after the context was destroyed or reset.
  void end_context(CUcontext context);
  // Returns the priority, lowered to the highest priority that the session may use.
  int limited(int priority) const;

  const api::DriverTable& driver;  // not metered
  const bool limits;               // memory has a limit; otherwise it is only counted
  MemoryMeter memory;
  Bookings allocations;
  Bookings arrays;
  Bookings modules;
  LibraryMeter libraries;
  Bookings contexts;
  Bookings heaps;           // of malloc() in kernels, by context
  Bookings printf_buffers;  // of printf() in kernels, by context
  PoolMeter pools;
  StreamFrees stream_frees;
  PhysicalMeter physical;
  GraphMeter graphs;
  // The highest priority of the session, in levels above the lowest priority. Valid if the session
  // has a limit on priorities.
  uint32_t priorities = 0;
  // Called before pools and graphs are trimmed. Makes the driver notice completed frees, because a
  // trim releases only memory whose free the driver has noticed (pool_frees.h). Returns false if
  // nothing may be trimmed now, because that could wait for the device.
  std::function<bool()> before_trimming;
  std::optional<DriverDecorator<Meters>> metered;
};

// The most bytes that a driver takes for a pitched allocation.
uint64_t pitched_bytes(size_t width, size_t height);
// The bytes of an array's elements. The driver does not report the size of an array.
uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& array);
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels);

// Books `bytes`, then calls `make`, which creates an object in the current context and writes its
// handle to `*object`.
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

// Calls `end`, which ends an object, and releases the object's booking.
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
