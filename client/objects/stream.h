// Streams, contexts and events. Work is queued in streams and contexts; events show whether it is
// done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include <cuda.h>

#include "client/objects/object.h"
#include "client/session/event_state.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class Timeline;

// A queue of commands: a stream, or a context for its legacy default stream.
struct WorkQueue : Object {
  // Null only if the queue has no session. Shared, because events that were recorded in the stream
  // may outlive the stream and need its timeline.
  const std::shared_ptr<Timeline> timeline;

 protected:
  // `stream`: its id, 0 for the legacy default stream.
  WorkQueue(wire::Kind kind, const Identity& identity, wire::ObjectId stream);
  ~WorkQueue() = default;
};

// Cached answers of cuCtxGetLimit for a context. A driver enlarges the stack of a context's threads
// when it launches a kernel that needs more. So a cached stack size is valid until stack_changes()
// (code.h) grows. Threads: any; nothing blocks.
class KnownLimits {
 public:
  // A point in time before the query to the worker. It shows keep() and find() that an answer is
  // older than a change and must not be used.
  struct Moment {
    uint64_t forgotten, stack_changes;
  };
  Moment now() const;
  bool find(CUlimit limit, const Moment& now, size_t* value) const;
  void keep(CUlimit limit, const Moment& asked, size_t value);
  void forget();

 private:
  mutable Mutex mutex_;
  std::map<CUlimit, size_t> known_ RCUDA_GUARDED_BY(mutex_);
  uint64_t forgotten_ RCUDA_GUARDED_BY(mutex_) = 0;  // number of calls of forget()
  uint64_t stack_known_at_ RCUDA_GUARDED_BY(mutex_) = 0;
};

struct Context : WorkQueue {
  static constexpr wire::Kind kKind = wire::Kind::kContext;
  explicit Context(const Identity& identity) : WorkQueue(kKind, identity, 0) {}
  ~Context();

  unsigned flags = 0;  // as given at creation
  // True for a primary context that is not active: it was released or reset, or never retained.
  std::atomic<bool> given_back{false};
  // A green context owns only streams. Other objects created in it belong to the device's primary
  // context, which the green context keeps active. Its CUgreenCtx is its CUcontext, as with a
  // driver. `green` is set last during creation: other threads may find the context earlier.
  std::atomic<bool> green{false};
  unsigned multiprocessors = 0;    // of a green context
  std::atomic<uint32_t> usage{1};  // the count of cuCtxAttach and cuCtxDetach
  KnownLimits limits;
};

struct Stream : WorkQueue {
  static constexpr wire::Kind kKind = wire::Kind::kStream;
  explicit Stream(const Identity& identity) : WorkQueue(kKind, identity, identity.id) {}
  ~Stream();

  unsigned flags = 0;  // as given at creation
  int32_t priority = 0;
};

struct Event : Object {
  static constexpr wire::Kind kKind = wire::Kind::kEvent;
  explicit Event(const Identity& identity)
      : Object(kKind, identity),
        state({identity.session, identity.context, identity.device}, identity.id) {}

  unsigned flags = 0;  // as given at creation
  EventState state;
};

}  // namespace rcuda::client
