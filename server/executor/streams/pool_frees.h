// PoolFrees: makes the driver give back memory that was freed in stream order.
//
// A driver lets go of a pool's memory in calls that synchronise: beyond the release threshold "on
// the next call to stream, event or context synchronize", and cuMemPoolTrimTo may take a free for
// outstanding "whose completion has not been observed on the host (eg. by a synchronize)" (CUDA's
// documentation; on an H200 polled events alone left pools as they were). The worker waits by
// polling. So once a session has freed memory in stream order, the driver also synchronises with
// what polling found done, which returns at once.
//
// While a stream is held for another worker this does nothing, because to give memory back may wait
// for the device. The next synchronisation gives it back.
// Executor thread only. That thread alone holds streams, so no stream becomes held between the
// check and the call. Nothing blocks.
#pragma once

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class PeerHub;

class PoolFrees {
 public:
  // All outlive this object.
  PoolFrees(const api::DriverTable& driver, SessionObjects& objects, const PeerHub& peers)
      : driver_(driver), objects_(objects), peers_(peers) {}

  // Something was freed in stream order.
  void note() { any_ = true; }
  bool any() const { return any_; }
  // `event` is complete. It was recorded in `stream`, if that still exists.
  void reached(ContextState& context, CUevent event, bool has_stream, CUstream stream);
  // The same for all streams of the session that have nothing to do.
  void reached_all();

 private:
  void synchronize_if_idle(CUstream stream);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  const PeerHub& peers_;
  bool any_ = false;
};

}  // namespace rcuda::server
