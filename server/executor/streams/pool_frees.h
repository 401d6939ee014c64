// PoolFrees: makes the driver release memory that was freed in stream order.
//
// A driver releases a pool's memory in calls that synchronise. It releases memory beyond the
// release threshold "on the next call to stream, event or context synchronize". For
// cuMemPoolTrimTo, a free may be outstanding if its "completion has not been observed on the host
// (eg. by a synchronize)". (The quotations are from CUDA's documentation; on an H200, polled events
// alone left pools unchanged.)
// The worker waits by polling. So after a session has freed memory in stream order, the worker also
// synchronises the events and streams that polling found complete. Such a call returns at once.
//
// While a stream is held for another worker, this object does nothing, because releasing memory may
// wait for the device. The next synchronisation releases the memory.
// Executor thread only. Only this thread holds streams, so no stream becomes held between the check
// and the call. Nothing blocks.
#pragma once

#include <cuda.h>

#include <functional>
#include <utility>

#include "api/driver_table.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class PoolFrees {
 public:
  // `driver` and `objects` outlive this object. `holds_stream`: whether a stream is held for
  // another worker.
  PoolFrees(const api::DriverTable& driver, SessionObjects& objects,
            std::function<bool()> holds_stream)
      : driver_(driver), objects_(objects), holds_stream_(std::move(holds_stream)) {}

  // To be called when memory was freed in stream order.
  void note() { any_ = true; }
  bool any() const { return any_; }
  // To be called when `event` is complete. `has_stream`: it was recorded in `stream`, which still
  // exists.
  void reached(ContextState& context, CUevent event, bool has_stream, CUstream stream);
  // Synchronises all idle streams of the session: the created ones, and the legacy stream of the
  // current context.
  void reached_all();

 private:
  void synchronize_if_idle(CUstream stream);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  std::function<bool()> holds_stream_;
  bool any_ = false;
};

}  // namespace rcuda::server
