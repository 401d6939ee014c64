// Timelines: all timelines of a session. They show whether a context is idle, so that a
// synchronisation with nothing to wait for costs no round trip.
//
// A context is quiet when all work of its streams and of its legacy default stream is known to be
// done (their timelines are level), and so are all unplaced commands. Unplaced commands were sent
// without a timeline. They are counted for the whole session, because they may work in any context.
// A context is awaited when waits have covered all its work, so that the output of its kernels is
// also printed. Threads: any. The session calls count_unplaced() while it holds the lock that
// orders its commands.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/session/timeline.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class Timelines {
 public:
  // The work that a wait covers, the wider scope first. The legacy default stream waits for all
  // blocking streams of its context. So if the context is quiet, its default stream is quiet too.
  enum class Scope { kContext, kDefaultStream };

  // `stream`: 0 for the context's legacy default stream.
  std::shared_ptr<Timeline> make(TimelineHost& host, wire::ObjectId context, wire::ObjectId stream);
  // Call it after the stream is destroyed. Its timeline stays until its work is known to be done.
  void end_stream(const std::shared_ptr<Timeline>& timeline);
  void end_context(wire::ObjectId context);

  // Counts a command that enters the ring and may queue work on an unknown stream.
  void count_unplaced() { unplaced_.fetch_add(1, std::memory_order_acq_rel); }

  // The work so far. A wait that is sent after now() covers it.
  struct Positions {
    wire::ObjectId context = 0;
    Scope scope = Scope::kContext;
    uint64_t unplaced = 0;
    std::vector<std::pair<std::shared_ptr<Timeline>, uint64_t>> timelines;
  };
  Positions now(Scope scope, wire::ObjectId context);
  // Call it when the work at these positions is known to be done. For example, a command has
  // succeeded that was sent after now() and that the worker executes only after this work.
  void done(const Positions& positions);
  // Call it when a wait has succeeded that was sent after now(). In addition to done(), records
  // that the output of kernels is printed.
  void waited(const Positions& positions);
  // Whether all work of this scope is known to be done.
  bool is_quiet(Scope scope, wire::ObjectId context);
  // Whether waits have covered all work of this scope.
  bool is_awaited(Scope scope, wire::ObjectId context);

  // Returns the number of waits that have ended. For each wait, the number grows before any work
  // counts as covered by this wait.
  uint64_t waits() const { return waits_.load(); }
  // Returns waits() without the calling thread's own waits. Exception: waits that the thread made
  // before its latest wait in another session are counted.
  uint64_t waits_of_others() const {
    return waits_.load() - (own_waits_.of == this ? own_waits_.count : 0);
  }
  void add_wait() {
    waits_.fetch_add(1);
    if (own_waits_.of != this) own_waits_ = {this, 0};
    ++own_waits_.count;
  }

 private:
  // The session of the calling thread's latest wait, and its consecutive waits there.
  struct OwnWaits {
    const Timelines* of;
    uint64_t count;
  };
  using ByScope = std::array<uint64_t, 2>;
  struct OfContext {
    std::vector<std::shared_ptr<Timeline>> timelines;
    ByScope unplaced_reached{}, unplaced_awaited{};
  };

  void erase_ended(OfContext& context);
  void note(const Positions& positions, std::initializer_list<ByScope OfContext::*> counts);
  bool is_over(Scope scope, wire::ObjectId context, bool (Timeline::*over)() const,
               ByScope OfContext::*unplaced);

  std::atomic<uint64_t> waits_{0};
  static inline thread_local OwnWaits own_waits_{};
  std::atomic<uint64_t> unplaced_{0};
  Mutex mutex_;  // locked before a timeline's mutex
  std::unordered_map<wire::ObjectId, OfContext> contexts_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
