// Streams: queues of operations. One borrowed thread at a time executes a queue, in order.
//
// A Stream has no thread of its own. When work arrives, the stream borrows a thread
// (worker_threads.h), its runner, and returns it some microseconds after the queue has become
// empty. A thread that waits for the stream becomes its runner if the present runner has not begun
// (for example, has not been scheduled). An operation starts when the previous operation has
// finished and every Point that it waits for is reached. A stream that must wait for a Point
// returns its thread; the Point's timeline wakes the stream later.
//
// A StreamSet has the streams of a context, and orders them. Work in the legacy default stream
// waits for all earlier work in the context's blocking streams. Later work in the blocking streams
// waits for the work in the legacy stream. Submissions to all of these streams take one mutex per
// context, so that two streams can never wait for each other. Non-blocking streams are not ordered.
//
// A GPU has a limited number of queues, which its streams share, whatever their priorities. Work
// does not begin before earlier work in its queue has finished. SOFTGPU_CONNECTIONS sets the number
// of queues of each device. As observed on an H200 (docs/p2p_measurements.md), a stream with
// unfinished work stays in its queue; any other stream takes an empty queue if there is one.
//
// Threads: any thread may call anything. Only wait functions wait for device work; submissions wait
// if the stream's queue is very long.
//
// Ownership: the StreamSet owns its streams until they are destroyed and empty; runners and the
// handle table hold them too. StreamSet::shutdown(), called when the context is destroyed, stops
// running grids, drops work that has not started and returns when no thread is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/operation.h"
#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

class Connections;
struct StreamCapture;
class StreamSet;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { kLegacy, kPerThread, kBlocking, kNonBlocking };

  Stream(std::shared_ptr<StreamSet> set, Kind kind, int priority);
  ~Stream();

  CUstream handle() { return reinterpret_cast<CUstream>(this); }
  Kind kind() const { return kind_; }
  unsigned flags() const {
    return kind_ == Kind::kNonBlocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  }
  int priority() const { return priority_.load(std::memory_order_relaxed); }
  void set_priority(int priority);  // clamped to the device's range; has no effect
  uint64_t id() const { return id_; }
  // The context may have been destroyed if closed() is true.
  Context& context() const { return *context_; }
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // Appends `operation`, which starts once `waits` are reached. `*end` is the Point that it
  // completes. CUDA_ERROR_CONTEXT_IS_DESTROYED once the stream is closed.
  CUresult enqueue(Operation operation, std::vector<Point> waits = {}, Point* end = nullptr);
  // The two parts of enqueue(), for callers that hold a lock. wait_for_room() waits while the queue
  // is very long; call it before you take the lock. enqueue_at_once() never waits.
  void wait_for_room();
  CUresult enqueue_at_once(Operation operation, std::vector<Point> waits = {},
                           Point* end = nullptr);
  // enqueue(), then waits until the operation has finished. If the stream is idle, the calling
  // thread executes the operation, unless the operation may run host functions.
  CUresult enqueue_and_wait(Operation operation);

  // Whether all work submitted so far has finished; for the legacy stream, also the work in
  // blocking streams.
  bool finished();
  void synchronize();

  // Accepts no more work; queued work still runs (cuStreamDestroy).
  void retire() { retired_.store(true, std::memory_order_release); }
  bool retired() const { return retired_.load(std::memory_order_acquire); }
  bool idle() const { return timeline_->completed() >= submitted_.load(std::memory_order_acquire); }

  // Attributes that have no effect here and are only stored.
  struct Attributes {
    CUaccessPolicyWindow access_policy{};
    // Until the program sets it, driver 580 on an H200 returns -1, which cannot be set.
    CUsynchronizationPolicy synchronization = static_cast<CUsynchronizationPolicy>(-1);
    CUlaunchMemSyncDomain memory_domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
    CUlaunchMemSyncDomainMap memory_domain_map{0, 1};
  };
  std::mutex attributes_mutex;
  Attributes attributes;

  // Not null while the stream is part of a capture. Guarded by graph_mutex(), except that
  // capturing() may be called without it.
  std::unique_ptr<StreamCapture> capture;
  std::atomic<bool> capturing_flag{false};
  bool capturing() const { return capturing_flag.load(std::memory_order_acquire); }

 private:
  friend class StreamSet;
  enum class State { kIdle, kRunning, kBlocked };
  struct Task {
    Operation operation;
    std::vector<Point> waits;
    uint64_t sequence = 0;
    bool begun = false;    // a runner has taken it; written under mutex_
    bool started = false;  // a graph launch that has begun
  };

  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> pending();
  CUresult enqueue_ordered(Operation operation, std::vector<Point> waits, Point* end,
                           uint64_t* runner);
  // With `runner`, borrows no thread for an idle stream. Instead, sets `*runner` to a new runner
  // number, with which the caller must call run().
  CUresult push(Operation operation, std::vector<Point> waits, Point* end, uint64_t* runner);
  void post_runner(uint64_t runner);
  // Executes tasks as runner number `runner`. Returns when the stream has another runner, when the
  // queue is empty or the stream blocks, or when `until` is completed.
  void run(uint64_t runner, uint64_t until);
  Task* next_task(uint64_t runner, uint64_t until);
  bool perform(Task& task);  // false: blocked; this thread is no longer the runner
  bool block_on(const Point& point);
  void resume(uint64_t runner);
  // Waits until operation `sequence` has finished; does the work itself if no runner has begun it.
  void wait_for(uint64_t sequence);
  void close();

  const std::shared_ptr<StreamSet> set_;
  // Keeps the context for calls that still hold the stream when the context ends. Then the set
  // drops its streams, so the references form no lasting cycle.
  const std::shared_ptr<Context> context_;
  const Kind kind_;
  Connections* const connections_;  // the device's; null: the stream has its own queue
  size_t connection_ = 0;           // guarded by connections_->mutex; meaningless while idle
  std::atomic<int> priority_;
  const uint64_t id_;
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();

  std::atomic<bool> retired_{false};
  std::atomic<bool> closed_{false};

  std::mutex mutex_;
  std::deque<Task> queue_;  // the front may be executing; references survive push_back
  State state_ = State::kIdle;
  uint64_t runner_ = 0;  // number of the present runner; any other runner has lost the stream
  std::atomic<uint64_t> submitted_{0};  // written under mutex_
};

class StreamSet : public std::enable_shared_from_this<StreamSet> {
 public:
  explicit StreamSet(Context& context) : context_(context) {}

  Context& context() const { return context_; }

  std::shared_ptr<Stream> legacy();
  // The calling thread's own stream. It ends when the thread has ended and its work is done.
  std::shared_ptr<Stream> per_thread();
  // A new stream, in the handle table; null after shutdown(). The priority is clamped to the
  // device's range.
  std::shared_ptr<Stream> create(unsigned flags, int priority);

  // Waits for all work submitted before the call, in every stream of the context.
  void synchronize();
  bool idle();
  // Runs `operation` after all earlier work of all streams. The context's streams do not wait for
  // it.
  CUresult record_all(Operation operation, Point* end);
  // Makes later work in every existing stream, and in blocking streams made later, wait for `waits`
  // and for everything that `operation` waits for.
  CUresult wait_in_all(const Operation& operation, const std::vector<Point>& waits = {});
  // Stops running grids, drops work that has not started, and returns when no thread is left.
  // Afterwards every handle of the set is invalid.
  void shutdown();

  // The number of the set's blocking streams that are capturing; see capture.h.
  std::atomic<int> blocking_captures{0};

 private:
  friend class Stream;
  std::vector<std::shared_ptr<Stream>> snapshot();
  // Adds the stream to the set. After shutdown(), closes the stream instead.
  void add(const std::shared_ptr<Stream>& stream);
  void add_locked(const std::shared_ptr<Stream>& stream);
  void drop_finished_locked();

  Context& context_;
  std::mutex order_mutex_;  // taken before any Stream::mutex_
  bool closed_ = false;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> legacy_;
};

// The streams of a context that is alive.
StreamSet& streams_of(Context& context);

// Calls on a stream begin with this check: the driver is initialised and the stream exists. Returns
// the sticky error, if any, of the stream's context. `*context` is that context, which the stream
// keeps alive. A created stream can be used without a current context.
CUresult enter_stream(CUstream handle, Context** context, std::shared_ptr<Stream>* stream);
// submit() of operation.h, for a Stream instead of a handle.
CUresult submit(Stream& stream, Operation operation);

// The stream that 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or the handle of a created stream names
// on this thread. CUDA_ERROR_INVALID_HANDLE, or the error of a missing current context.
CUresult resolve_stream(CUstream handle, std::shared_ptr<Stream>* stream);

constexpr int kMinStreamPriority = 0;
constexpr int kGreatestStreamPriority = -5;

// Executes one operation, other than a graph launch, on the calling thread. If the context has a
// sticky error or is being destroyed, skips it and returns the reason. A failure becomes the
// context's sticky error.
CUresult execute_operation(Context& context, const Operation& operation);

// Blocks until the point is reached or `context` is being destroyed.
void wait_unless_stopping(const Point& point, Context& context);

}  // namespace softgpu::driver
