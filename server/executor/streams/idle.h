// IdleCheck: whether the GPUs have done what the session queued, and what is to happen once they
// have.
//
// Executor thread only. Nothing blocks: the driver is asked, or a Completion waits.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "api/driver_table.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/work_count.h"

namespace rcuda::server {

// The work of a destroyed stream. The driver carries it out, so whoever waits for the context waits
// for it as well.
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

  // Whether all work of the context, in whatever stream, is known to be done. Nothing is recorded.
  // False where the answer would take too many questions to the driver.
  bool known_idle(ContextState& context);
  bool known_idle();  // in all contexts
  // How many streams of the device have work that is not known to be done. Streams with which a
  // component waits for the program's events do not count. `ask`: asks the driver as well.
  size_t busy_streams(CUdevice device, bool ask);
  // Calls `when_done` once all work that the context has so far is done, with the first error. A
  // context with a stream in capture is refused at once, as CUDA refuses to synchronise it.
  void when_idle(ContextState& context, WhenDone when_done);
  // The stream is about to be destroyed.
  void stream_departs(CUstream stream);

 private:
  // All streams of a context that have work which is not known to be done.
  std::vector<SessionStream> busy_streams(ContextState& context);
  // Whether destroyed streams of the context have work under way.
  bool any_departed(ContextState& context);
  // What cuStreamQuery says of a stream other than the legacy one. CUDA_ERROR_NOT_READY: it has
  // work to do. A stream in capture is not asked and gives an error.
  CUresult query(const SessionStream& stream);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  WorkCount& work_;
  Completions& completions_;
};

}  // namespace rcuda::server
