// PoolMeter: books the memory that the session's pools hold, whether the program uses it or the
// driver keeps it for reuse.
//
// A pool allocates and releases memory by the driver's own rules, so its size is read from the
// driver whenever it may have changed. A pool that the program destroys lives on in the driver
// until its memory has been freed, but its size can no longer be queried. So destroy() delays the
// destruction until the pool is empty. Without limits the pool is destroyed immediately, and its
// memory counts as free.
//
// Executor thread only. Blocking: trim() and destroy(), as the driver; may_hold() and
// book_growth(), as MemoryMeter::take(). Errors: if the driver does not report a pool's size, the
// booking stays as it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class PoolMeter {
 public:
  // All outlive this object.
  PoolMeter(const api::DriverTable& driver, MemoryMeter& meter,
            const std::vector<SessionDevice>& devices, bool may_delay)
      : driver_(driver), meter_(meter), devices_(devices), may_delay_(may_delay) {}

  // Registers a pool. `created`: the program has created it; otherwise it is the driver's own.
  void know(CUmemoryPool pool, const CUmemLocation& location, bool created = false);
  void know_defaults();  // the default pools of the session's devices

  // Whether an allocation of `bytes` from the pool may fit. Returns false if it would not fit even
  // if all memory that the pool holds were free.
  bool may_hold(CUmemoryPool pool, uint64_t bytes);
  // Books the growth of a pool. Returns false if it does not fit; it is booked nevertheless.
  bool book_growth(CUmemoryPool pool);
  // Releases the bookings of memory that pools have released. Then destroys each empty pool whose
  // destruction destroy() has delayed.
  void refresh();
  // Makes the pools release cached memory, then calls refresh().
  void trim();
  CUresult destroy(CUmemoryPool pool);
  // Returns the device's current pool: allocations that name no pool come from it.
  CUmemoryPool current_of(CUdevice device);

 private:
  struct Pool {
    CUdevice device = 0;  // or MemoryMeter::kHost
    uint64_t booked = 0;
    bool created = false;  // by the program
    bool ending = false;   // the program has destroyed it
  };
  std::optional<uint64_t> size_of(CUmemoryPool pool) const;
  void book_release(CUmemoryPool handle, Pool& pool);

  const api::DriverTable& driver_;
  MemoryMeter& meter_;
  const std::vector<SessionDevice> devices_;
  const bool may_delay_;
  bool defaults_known_ = false;
  std::map<CUmemoryPool, Pool> pools_;
};

}  // namespace rcuda::server
