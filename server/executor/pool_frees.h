// Memory freed in stream order, and when the driver gives it back.
//
// A driver lets go of a pool's memory in calls that synchronise: beyond the release threshold "on
// the next call to stream, event or context synchronize", and cuMemPoolTrimTo may take a free for
// outstanding "whose completion has not been observed on the host (eg. by a synchronize)" (CUDA's
// documentation; on an H200 polled events alone left pools as they were). The worker waits by
// polling. So once a session has freed anything in stream order, the driver is also made to
// synchronise with what polling found done, which returns at once.
//
// Not while a stream is held for another worker: giving memory back may wait for the device. The
// next synchronisation does it then. One thread: the executor's, which is also the only one to hold
// streams, so that none becomes held between the look and the call. Nothing here blocks.
#pragma once

#include <cuda.h>

namespace rcuda::server {

class Executor;
struct ContextState;

class PoolFrees {
 public:
  explicit PoolFrees(Executor& executor) : executor_(executor) {}

  // Something was freed in stream order.
  void note() { any_ = true; }
  bool any() const { return any_; }
  // `event` is complete. It was recorded in `stream`, if that still exists.
  void reached(ContextState& context, CUevent event, bool has_stream, CUstream stream);
  // All streams of the session that have nothing to do.
  void reached_all();

 private:
  void synchronize_if_idle(CUstream stream);

  Executor& executor_;
  bool any_ = false;
};

}  // namespace rcuda::server
