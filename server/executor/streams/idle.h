// IdleCheck: finds out whether the GPUs have done all work of the session, and runs actions when
// they have.
//
// Executor thread only. Nothing blocks: the driver is queried, or a Completion waits.
#pragma once

#include <cstddef>
#include <vector>

#include "api/driver_table.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/work_count.h"

namespace rcuda::server {

// The remaining work of a destroyed stream. The driver still carries it out, so a wait for the
// context includes it.
struct Departed {
  bool done = false;
  std::vector<WhenDone> waiters;
};

class IdleCheck {
 public:
  // All outlive this object.
  IdleCheck(const api::DriverTable& driver, SessionObjects& objects, WorkCount& work,
            Completions& completions)
      : driver_(driver), objects_(objects), work_(work), completions_(completions) {}

  // Whether all work of the context, in all streams, is known to be done. Records no event. Returns
  // false if the answer would take too many driver queries.
  bool known_idle(ContextState& context);
  bool known_idle();  // in all contexts
  // Whether any stream has work in progress. Asks the driver about each stream with work that is
  // not known to be done. A stream in capture has no work. While a context has a stream in capture,
  // its legacy stream is not queried.
  bool any_work();
  bool any_capture();  // whether any stream is in capture
  // The number of streams of the device with work that is not known to be done, including destroyed
  // streams. Streams of the worker's own components do not count, even if they wait for events of
  // the program. `ask`: also queries the driver.
  size_t count_busy_streams(CUdevice device, bool ask);
  // Calls `when_done`, with the first error, when all work that the context has so far is done. If
  // a stream of the context is in capture, calls it at once with
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, as CUDA refuses to synchronise such a context.
  void when_idle(ContextState& context, WhenDone when_done);
  // To be called before a stream is destroyed.
  void stream_departs(CUstream stream);

 private:
  // The legacy stream of a context, followed by its other streams with work that is not known to be
  // done.
  std::vector<SessionStream> streams_to_check(ContextState& context);
  // Whether destroyed streams of the context have work in progress.
  bool any_departed(ContextState& context);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  WorkCount& work_;
  Completions& completions_;
};

}  // namespace rcuda::server
