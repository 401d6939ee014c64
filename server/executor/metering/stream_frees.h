// StreamFrees: keeps the bookings of memory that is freed in stream order, until the stream has
// reached the free. (Not for memory of pools: PoolMeter counts the memory that the pools hold.)
//
// An event after a free shows when the stream has reached the free. The event takes a place in the
// stream's queue, and a full queue blocks the thread that records an event. The client counts the
// place of the free, but not the place of the event (client/session/timeline.cpp). So a stream has
// at most kMostEvents such events at a time. Further frees share the next event, which is recorded
// when an earlier event has been reached.
//
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class StreamFrees {
 public:
  // The most events of a stream that are not known to be reached. The client leaves more than this
  // number of places in the driver's queue free, for commands of the worker itself
  // (client/session/timeline.cpp).
  static constexpr size_t kMostEvents = 4;

  // The driver outlives this object.
  explicit StreamFrees(const api::DriverTable& driver) : driver_(driver) {}

  // To be called directly after the free. Returns false, and keeps nothing, if no event can show
  // when the stream has reached the free.
  bool add(const Bookings::Booking& booking, CUstream stream, Bookings& bookings);
  // Releases the bookings of frees that the streams have reached.
  void refresh(Bookings& bookings);
  // To be called before the stream is destroyed.
  void end_stream(CUstream stream);
  // To be called after the end of the context.
  void give_all_of(CUcontext context, Bookings& bookings);

 private:
  struct Recorded {
    CUevent event = nullptr;               // follows `frees`; not known to be reached
    std::vector<Bookings::Booking> frees;  // between the previous event and this event
  };
  // The frees of one stream.
  struct Line {
    CUcontext context = nullptr;           // of the stream
    CUstream stream = nullptr;             // null: the legacy default stream of the context
    bool ended = false;                    // the stream has been destroyed
    std::deque<Recorded> recorded;         // the earliest first
    std::vector<Bookings::Booking> later;  // frees without an event
  };

  Line* line_of(CUstream stream);
  bool record(Line& line);
  bool is_idle(const Line& line) const;
  void refresh(Line& line, Bookings& bookings);

  const api::DriverTable& driver_;
  std::vector<Line> lines_;
};

}  // namespace rcuda::server
