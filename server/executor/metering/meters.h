// Meters: what is booked for a session, by the kind of memory. Only the functions of metered
// tables use it (metered_driver.h).
//
// Executor thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

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

// Of the process. There are none before a MeteredDriver exists.
Meters& meters();

bool captures(CUstream stream);

// Calls `make`, which makes an object of `bytes` in the current context and writes its number to
// `*object`, and books it.
template <typename Object, typename Make>
CUresult make_booked(Bookings& bookings, uint64_t bytes, const Object* object, Make make) {
  MemoryMeter& meter = meters().memory;
  MemoryMeter::Place place;
  RCUDA_RETURN_IF_CUDA_ERROR(meter.current(&place));
  if (!meter.take(place.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make();
  if (result == CUDA_SUCCESS) {
    bookings.put(number_of(*object), {place, bytes});
  } else {
    meter.give_back(place.device, bytes);
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

// Books memory of another process that has been mapped at `address`. If it does not fit, calls
// `unmap`.
template <typename Unmap>
CUresult book_imported(CUdeviceptr address, Unmap unmap) {
  Meters& all = meters();
  MemoryMeter::Place place;
  int device = 0;
  size_t bytes = 0;
  CUresult result = all.memory.current(&place);
  if (result == CUDA_SUCCESS) {
    result = all.driver.cuMemGetAddressRange_v2(nullptr, &bytes, address);
  }
  if (result == CUDA_SUCCESS) {
    result =
        all.driver.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  }
  place.device = device;
  if (result == CUDA_SUCCESS && !all.memory.take(place.device, bytes)) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS) {
    all.allocations.put(address, {place, bytes});
  } else {
    unmap();
  }
  return result;
}

// Each replaces the entries of a kind of memory, where the driver has them.
void meter_allocations(api::DriverTable* table);
void meter_arrays(api::DriverTable* table);
void meter_contexts(api::DriverTable* table);
void meter_graphs(api::DriverTable* table);
void meter_mappings(api::DriverTable* table);
void meter_modules(api::DriverTable* table);
void meter_pools(api::DriverTable* table);
void limit_priorities(api::DriverTable* table);

template <typename Function>
void replace_entry(Function*& entry, Function* replacement) {
  if (entry) entry = replacement;
}

}  // namespace rcuda::server
