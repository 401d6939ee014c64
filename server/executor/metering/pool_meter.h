// PoolMeter: books what the session's memory pools hold, whether the program uses it or the pool
// keeps it for reuse.
//
// A pool allocates and releases memory by the driver's own rules, so its size is read from the
// driver whenever it may have changed. A pool that the program destroys lives on in the driver
// until its memory has been freed. Then nobody could ask for its size, so destroy() delays the
// destruction until the pool is empty. Where nothing is limited it does not, and the pool's memory
// counts as free.
//
// Executor thread only. Blocking: trim() and destroy(), as the driver. Errors: a pool whose size
// the driver does not tell keeps what is booked for it.
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

  // `created`: by the program; otherwise the driver made the pool.
  void know(CUmemoryPool pool, const CUmemLocation& location, bool created = false);
  void know_defaults();  // those of the session's devices

  // Whether `bytes` may fit into a pool. Not if the pool would be too large even when everything in
  // it were free.
  bool may_hold(CUmemoryPool pool, uint64_t bytes);
  // Books what a pool has grown. False: it does not fit; the growth is booked nevertheless.
  bool book_growth(CUmemoryPool pool);
  // Gives back what pools have released.
  void refresh();
  // Makes the pools release what they only keep. Then as refresh().
  void trim();
  CUresult destroy(CUmemoryPool pool);
  // That new memory of the device comes from, without a pool's name.
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
