// MirrorSync: what mirrored memory (client/mirror/mirror.h) adds to the waits of a session, and how
// much of the GPU's writes the host has seen.
//
// A synchronising call asks for small mirrors together with its wait, and fetches all that changed
// after it. A call that has nothing to wait for fetches nothing, unless another wait has ended
// since the last fetch began.
//
// Threads: any. Blocking: show_writes() and fetch(), until the worker has answered. Until there is
// mirrored memory, each function only looks for the hooks.
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

// Questions about mirrored memory that went out with a wait. Their answers come with its end.
class MirrorQuestions {
 public:
  virtual ~MirrorQuestions() = default;
  uint64_t waits_of_others = 0;  // Timelines::waits_of_others() before they were sent
};

struct MirrorHooks {
  // before and after a host function, with the number of the worker's loan (wire::MirrorLoan)
  void (*arrived)(Session&, uint64_t loan);
  void (*leave)(Session&, uint64_t loan);
  // with a wait: requests bytes as they are when the worker signals the word; null: no mirror needs
  // it
  std::unique_ptr<MirrorQuestions> (*ask)(Session&, Word);
  // after a wait: fetches the worker's bytes into the application's memory. The second argument:
  // the questions that went out with the wait, or null
  CUresult (*pull)(Session&, MirrorQuestions*);
  // with a wait, and (`often`) after each query of unfinished work; sends what the host has
  // changed in page-locked memory, because a running kernel may be waiting for it
  void (*show)(Session&, bool often);
};

class MirrorSync {
 public:
  MirrorSync(Session& session, Timelines& timelines) : session_(session), timelines_(timelines) {}

  // Set with the first mirrored memory and never cleared.
  void set_hooks(const MirrorHooks* hooks) { hooks_.store(hooks); }
  bool any() const { return hooks(); }

  void host_function_arrived(uint64_t loan);
  void host_function_leaves(uint64_t loan);
  // Shows running kernels what the host has written to mirrored page-locked memory. For callers
  // that wait for work, or query it (`often`) and find it unfinished. Later calls return errors.
  void show_writes(bool often = false);

  // Requests mirrored memory as it is when the worker signals the word. Wakes nobody: the next
  // command has to. Null: there was nothing to request.
  std::unique_ptr<MirrorQuestions> ask(Word word);
  // Fetches what the GPU changed, with the answers to `asked`, or with null, by asking now.
  CUresult fetch(MirrorQuestions* asked);
  // Whether a fetch has begun since the last wait: it has shown what the work wrote.
  bool is_fetched() const { return !any() || fetched_waits_.load() == timelines_.waits(); }

  // Counts work after which the GPU may write. Commands that do not show it are noted as well:
  // copies of pageable memory to mirrored memory.
  void note_write() { work_sent_.fetch_add(1, std::memory_order_relaxed); }
  // Programs free, and copy, much in a row. Two such calls with the same point fetch once.
  struct Point {
    wire::ObjectId context = 0, stream = 0;
    uint64_t work = UINT64_MAX;
    bool operator==(const Point&) const = default;
  };
  Point point(wire::ObjectId context, wire::ObjectId stream) const {
    return {context, stream, work_sent_.load(std::memory_order_relaxed)};
  }
  // Fetches after a call that returns when the device is idle. `point`: from before the call.
  CUresult fetch_after_call(const Point& point);
  // `wait`, so that the host sees what the GPU wrote; not if it cannot have written since the last
  // such call.
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
  // Timelines::waits() when the last fetch of all mirrored memory began.
  std::atomic<uint64_t> fetched_waits_{UINT64_MAX};
  std::atomic<uint64_t> work_sent_{0};
  Mutex mutex_;
  // The last of fetch_after_call() and await_writes().
  Point freed_ RCUDA_GUARDED_BY(mutex_);
  Point awaited_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
