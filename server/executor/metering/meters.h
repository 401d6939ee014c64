// Meters: what is booked for a session, by the kind of memory, and what the overrides of a metered
// driver do with it (metered_driver.h). Most overrides are rows of api/table/driver_overrides.toml,
// the others are in metered_*.cpp.
//
// Executor thread only. Blocking: as the driver.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "api/driver_decorator.h"
#include "api/driver_overrides.h"
#include "api/driver_table.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/metering/graph_meter.h"
#include "server/executor/metering/library_meter.h"
#include "server/executor/metering/memory_meter.h"
#include "server/executor/metering/physical_meter.h"
#include "server/executor/metering/pool_meter.h"
#include "server/executor/metering/stream_frees.h"

namespace rcuda::server {

struct Meters {
  // The driver and `done` outlive this object.
  Meters(const api::DriverTable& table, const std::vector<SessionDevice>& devices,
         std::shared_ptr<Quota> quota, wire::Work* done)
      : driver(table),
        limits(quota->limits_device_memory() || quota->limits_host_memory()),
        memory(table, devices, std::move(quota), done),
        allocations(memory),
        arrays(memory),
        modules(memory),
        libraries(memory, devices),
        contexts(memory),
        heaps(memory),
        printf_buffers(memory),
        pools(table, memory, devices, limits),
        stream_frees(table),
        physical(memory),
        graphs(table, memory, devices) {
    memory.reclaim = [this] { reclaim(); };
  }

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
  uint32_t priorities = 0;                // above the lowest, if limit_priorities() was called
  std::function<bool()> before_trimming;  // see MeteredDriver; null: nothing is to be done
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
  const CUresult result = make();
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
