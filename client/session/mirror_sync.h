// MirrorSync: exchanges mirrored memory (client/mirror/mirror.h) around the waits of a session, and
// records which of the GPU's writes the host has seen.
//
// A synchronising call requests small mirrors together with its wait. After the wait it fetches all
// other changes. A call that has nothing to wait for fetches nothing, unless another wait has ended
// since the last fetch began.
//
// Threads: any. Blocking: show_writes() and ask(), while the command ring is full; the functions
// that fetch, until the worker has answered. Without mirrored memory there are no hooks, and the
// functions do nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

#include "client/session/completion_words.h"
#include "client/session/timelines.h"
#include "common/base/mutex.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;

// Queries about mirrored memory that were sent with a wait. The answers arrive when the wait ends.
class MirrorQuestions {
 public:
  virtual ~MirrorQuestions() = default;
  uint64_t waits_of_others = 0;  // Timelines::waits_of_others() before the queries
};

struct MirrorHooks {
  // Called before and after a host function. `loan`: the number of the worker's loan
  // (wire::MirrorLoan).
  void (*arrived)(Session&, uint64_t loan);
  void (*leave)(Session&, uint64_t loan);
  // Called with a wait. Requests the mirrors' bytes as they are when the worker signals the
  // completion word of the wait. Returns null if no mirror needs a request.
  std::unique_ptr<MirrorQuestions> (*ask)(Session&, Word);
  // Called after a wait. Fetches the worker's bytes into the application's memory. The second
  // argument: the queries that were sent with the wait, or null.
  CUresult (*pull)(Session&, MirrorQuestions*);
  // Called with each wait, and with `often` after each query that finds work unfinished. Sends the
  // host's changes of page-locked memory, because a running kernel may be waiting for them.
  void (*show)(Session&, bool often);
};

class MirrorSync {
 public:
  MirrorSync(Session& session, Timelines& timelines) : session_(session), timelines_(timelines) {}

  // Called when the session gets its first mirrored memory. The hooks are never removed.
  void set_hooks(const MirrorHooks* hooks) { hooks_.store(hooks); }
  bool any() const { return hooks(); }

  void host_function_arrived(uint64_t loan);
  void host_function_leaves(uint64_t loan);
  // Sends the host's writes to mirrored page-locked memory, so that running kernels see them. For
  // callers that wait for work, or query it (`often`) and find it unfinished. Later calls return
  // the errors.
  void show_writes(bool often = false);

  // Requests mirrored memory as it is when the worker signals `word`. Does not wake the worker: the
  // next command must wake it. Returns null if there is nothing to request.
  std::unique_ptr<MirrorQuestions> ask(Word word);
  // Fetches the GPU's changes. Uses the answers to `asked`; if it is null, queries the worker now.
  CUresult fetch(MirrorQuestions* asked);
  // Whether a fetch that began after the last wait has ended, so that the host sees what the
  // awaited work wrote.
  bool is_fetched() const { return !any() || fetched_waits_.load() == timelines_.waits(); }

  // Counts a command after which the GPU may write to mirrored memory. Callers also count copies of
  // pageable memory to mirrored memory, which Session::send() cannot recognise.
  void note_write() { work_sent_.fetch_add(1, std::memory_order_relaxed); }
  // Identifies the work that was sent before a call on a stream. If two calls have the same point,
  // no work was sent between them, so only the first call fetches. Programs often make many frees
  // or copies in a row.
  struct Point {
    wire::ObjectId context = 0, stream = 0;
    uint64_t work = UINT64_MAX;
    bool operator==(const Point&) const = default;
  };
  Point point(wire::ObjectId context, wire::ObjectId stream) const {
    return {context, stream, work_sent_.load(std::memory_order_relaxed)};
  }
  // Fetches the GPU's changes after a call that returns when the device is idle. `point`: the point
  // before the call.
  CUresult fetch_after_call(const Point& point);
  // Calls `wait`, so that the host sees the GPU's writes. Does nothing if `point` equals that of
  // the last await_writes(): then the GPU cannot have written since.
  template <typename Wait>
  CUresult await_writes(const Point& point, const Wait& wait) {
    return unless_known(&awaited_, point, wait);
  }

 private:
  const MirrorHooks* hooks() const { return hooks_.load(std::memory_order_acquire); }
  template <typename Show>
  CUresult unless_known(Point* known, const Point& point, const Show& show) {
    {
      MutexLock lock(mutex_);
      if (*known == point) return CUDA_SUCCESS;
    }
    if (const CUresult result = show(); result != CUDA_SUCCESS) return result;
    MutexLock lock(mutex_);
    *known = point;
    return CUDA_SUCCESS;
  }

  Session& session_;
  Timelines& timelines_;
  std::atomic<const MirrorHooks*> hooks_{nullptr};
  // The value of Timelines::waits() when the last fetch of all mirrored memory began.
  std::atomic<uint64_t> fetched_waits_{UINT64_MAX};
  std::atomic<uint64_t> work_sent_{0};
  Mutex mutex_;
  // The points of the last fetch_after_call() (freed_) and await_writes() (awaited_).
  Point freed_ RCUDA_GUARDED_BY(mutex_);
  Point awaited_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
