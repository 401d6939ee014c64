// StreamFrees: bookings of memory that is freed in stream order, until the stream has reached the
// free. (Memory of pools is not among them: what counts is what the pools hold.)
//
// An event after a free shows when the stream has reached it. It takes a place of the stream's
// queue, and a queue without room blocks the thread that records. So the client counts two places
// for a free (client/session/session.cpp).
//
// Executor thread only. Nothing blocks.
#pragma once

#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class StreamFrees {
 public:
  // The driver outlives this object.
  explicit StreamFrees(const api::DriverTable& driver) : driver_(driver) {}

  // The free is the stream's last work. False: the driver does not let its end be seen.
  bool add(const Bookings::Booking& booking, CUstream stream);
  // Gives back what the streams have reached.
  void refresh(Bookings& bookings);
  // To be called after the end of the context.
  void give_all_of(CUcontext context, Bookings& bookings);

 private:
  struct Free {
    CUcontext context = nullptr;  // of the stream
    CUevent event = nullptr;      // not known to be reached
    Bookings::Booking booking;
  };

  const api::DriverTable& driver_;
  std::vector<Free> frees_;
};

}  // namespace rcuda::server
