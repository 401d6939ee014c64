// Meters: what is booked for a session, by the kind of memory. Only the functions of metered
// tables use it (metered_driver.h).
//
// Threads: any. Each meter has its own lock, which it does not hold while it calls the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/driver_table.h"
#include "server/executor/metering/device_meter.h"

namespace rcuda::server {

struct Meters {
  Meters(const api::DriverTable& table, const std::vector<SessionDevice>& devices,
         std::shared_ptr<Quota> quota)
      : driver(table), device(table, devices, std::move(quota)), allocations(device) {}

  const api::DriverTable& driver;  // not metered
  DeviceMeter device;
  Bookings allocations;
};

// Of the process. There are none before a MeteredDriver exists.
Meters& meters();

// Calls `make`, which makes an object of `bytes` in the current context and writes its number to
// `*object`, and books it.
template <typename Object, typename Make>
CUresult make_booked(Bookings& bookings, uint64_t bytes, const Object* object, Make make) {
  DeviceMeter& meter = meters().device;
  DeviceMeter::Place place;
  if (CUresult result = meter.current(&place); result != CUDA_SUCCESS) return result;
  if (!meter.take(place.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make();
  if (result == CUDA_SUCCESS) {
    bookings.put((uint64_t)*object, {place, bytes});
  } else {
    meter.give(place.device, bytes);
  }
  return result;
}

// Calls `end`, which ends an object.
template <typename Object, typename End>
CUresult end_booked(Bookings& bookings, Object object, End end) {
  // Removed first: the driver may give the number to a new object as soon as this one has ended.
  const auto booking = bookings.remove((uint64_t)object);
  const CUresult result = end();
  if (!booking) return result;
  if (result == CUDA_SUCCESS) {
    bookings.give(*booking);
  } else {
    bookings.put((uint64_t)object, *booking);
  }
  return result;
}

// Each replaces the entries of a kind of memory, where the driver has them.
void meter_allocations(api::DriverTable* table);
void meter_contexts(api::DriverTable* table);

template <typename Function>
void replace_entry(Function*& entry, Function* replacement) {
  if (entry) entry = replacement;
}

}  // namespace rcuda::server
