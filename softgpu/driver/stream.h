// Streams: queues of operations, each carried out in order by one borrowed thread at a time.
//
// A Stream has no thread of its own. When work arrives it borrows one (worker_threads.h), its
// runner, keeps it for some microseconds after its queue has run empty, and gives it back. A thread
// that waits for the stream becomes its runner if the present one has not begun (it has not been
// scheduled, say). An operation starts when the one before it has finished and every Point it waits
// for is reached; a stream that must wait gives its thread back and asks the point's timeline to be
// woken.
//
// A StreamSet is a context's streams with the rules between them: work in the legacy default stream
// waits for all work submitted before to the context's blocking streams, and they wait for it.
// Submissions to those streams take one mutex per context, so that two of them can never each wait
// for the other; non-blocking streams stay out of it.
//
// On a GPU, streams beyond some number share its queues, whatever their priorities: work does not
// begin before what its queue was given earlier has finished. With SOFTGPU_CONNECTIONS a device's
// streams share so many. As seen on an H200 (docs/p2p_measurements.md), a stream with work under
// way stays in its queue, and one without takes a queue that has run empty where there is one.
//
// Threads: any thread may call anything. Nothing here waits for device work except wait functions,
// and submissions to a stream whose queue is very long.
// Ownership: the StreamSet owns its streams until they are destroyed and have run empty; runners
// and the handle table hold them besides. StreamSet::shutdown(), called by the context that is
// being destroyed, stops running grids, drops what has not started and returns when no thread is
// left.
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
  void set_priority(int priority);  // clamped to the device's range; nothing depends on it
  uint64_t id() const { return id_; }
  // Not alive any more once the stream is closed.
  Context& context() const { return *context_; }
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // Appends `operation`, to start once `waits` are reached. `*end` is the Point that it completes.
  // CUDA_ERROR_CONTEXT_IS_DESTROYED once the stream is closed.
  CUresult enqueue(Operation operation, std::vector<Point> waits = {}, Point* end = nullptr);
  // The two halves of it, for those who submit with a lock held: the wait for a very long queue to
  // get shorter, and what never waits.
  void wait_for_room();
  CUresult enqueue_at_once(Operation operation, std::vector<Point> waits = {},
                           Point* end = nullptr);
  // The same, then waits; a stream that was idle does the work on the calling thread.
  CUresult enqueue_and_wait(Operation operation);

  // Of all work submitted so far; for the legacy stream, of that in blocking streams too.
  bool finished();
  void synchronize();

  // Takes no further work; what is queued still runs (cuStreamDestroy).
  void retire() { retired_.store(true, std::memory_order_release); }
  bool retired() const { return retired_.load(std::memory_order_acquire); }
  bool idle() const { return timeline_->completed() >= submitted_.load(std::memory_order_acquire); }

  // Attributes that have no effect here and are only remembered.
  struct Attributes {
    CUaccessPolicyWindow access_policy{};
    // Until it is set a driver answers -1, which cannot be set (580 on an H200).
    CUsynchronizationPolicy synchronization = static_cast<CUsynchronizationPolicy>(-1);
    CUlaunchMemSyncDomain memory_domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
    CUlaunchMemSyncDomainMap memory_domain_map{0, 1};
  };
  std::mutex attributes_mutex;
  Attributes attributes;

  // Not null while the stream takes part in a capture. Guarded by graph_mutex(), except that
  // capturing() may be asked without it.
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
    bool begun = false;    // in the hands of a runner; written under mutex_
    bool started = false;  // a graph whose other branches are still running
  };

  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> pending();
  CUresult enqueue_ordered(Operation operation, std::vector<Point> waits, Point* end,
                           uint64_t* runner);
  // `*runner` is set, and no thread borrowed, when the caller shall run the idle stream itself.
  CUresult push(Operation operation, std::vector<Point> waits, Point* end, uint64_t* runner);
  void post_runner(uint64_t runner);
  // Executes tasks as runner number `runner`; returns when that is no longer the stream's runner,
  // when the queue is empty or the stream blocked, or when `until` is completed.
  void run(uint64_t runner, uint64_t until);
  Task* next_task(uint64_t runner, uint64_t until);
  bool perform(Task& task);  // false: blocked, this thread has lost the stream
  bool block_on(const Point& point);
  void resume(uint64_t runner);
  // Waits until operation `sequence` is finished; does the work itself where no runner has begun
  // it.
  void wait_for(uint64_t sequence);
  void close();

  const std::shared_ptr<StreamSet> set_;
  // For calls that still hold the stream when the context ends. The set drops its streams then, so
  // they do not keep each other.
  const std::shared_ptr<Context> context_;
  const Kind kind_;
  Connections* const connections_;  // the device's; null: the stream has its own
  size_t connection_ = 0;           // guarded by connections_->mutex; meaningless once idle
  std::atomic<int> priority_;
  const uint64_t id_;
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();

  std::atomic<bool> retired_{false};
  std::atomic<bool> closed_{false};

  std::mutex mutex_;
  std::deque<Task> queue_;  // the front may be executing; references survive push_back
  State state_ = State::kIdle;
  uint64_t runner_ = 0;  // the number of the present runner; others find that they have lost
  std::atomic<uint64_t> submitted_{0};  // written under mutex_
};

class StreamSet : public std::enable_shared_from_this<StreamSet> {
 public:
  explicit StreamSet(Context& context) : context_(context) {}

  Context& context() const { return context_; }

  std::shared_ptr<Stream> legacy();
  // The calling thread's own; it ends with the thread, once it has run empty.
  std::shared_ptr<Stream> per_thread();
  // A new stream, in the handle table; null after shutdown(). Priority is clamped to the device's
  // range.
  std::shared_ptr<Stream> create(unsigned flags, int priority);

  // Waits for all work submitted before the call, in every stream of the context.
  void synchronize();
  // An operation of its own behind all work of all streams; the context's streams do not wait for
  // it.
  CUresult record_all(Operation operation, Point* end);
  // Makes further work in every existing stream, and in blocking ones made later, wait for `waits`
  // and what `operation` waits for.
  CUresult wait_in_all(const Operation& operation, const std::vector<Point>& waits = {});
  // See the header comment. Afterwards every handle of the set is invalid.
  void shutdown();

  // How many of the set's blocking streams are capturing; see capture.h.
  std::atomic<int> blocking_captures{0};

 private:
  friend class Stream;
  std::vector<std::shared_ptr<Stream>> snapshot();
  // After shutdown() these close the stream instead.
  void add(const std::shared_ptr<Stream>& stream);
  void add_locked(const std::shared_ptr<Stream>& stream);
  void drop_finished_locked();

  Context& context_;
  std::mutex order_mutex_;  // before any Stream::mutex_
  bool closed_ = false;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> legacy_;
};

// The streams of a context that is alive.
StreamSet& streams_of(Context& context);

// What calls with a stream begin with: the driver is initialised and the stream exists. `*context`
// is the stream's, which keeps it, and its sticky error the result if it has one. No context need
// be current for a stream that was created.
CUresult enter_stream(CUstream handle, Context** context, std::shared_ptr<Stream>* stream);
// submit() of operation.h for a stream in hand.
CUresult submit(Stream& stream, Operation operation);

// What 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a created stream means on this thread:
// CUDA_ERROR_INVALID_HANDLE or what the current context's absence gives.
CUresult resolve_stream(CUstream handle, std::shared_ptr<Stream>* stream);

constexpr int kLeastStreamPriority = 0;
constexpr int kGreatestStreamPriority = -5;

// Carries out one operation, other than a graph launch, on the calling thread. Skipped, with the
// reason as the result, when the context has a sticky error or is being destroyed; a failure
// becomes the context's sticky error.
CUresult execute_operation(Context& context, const Operation& operation);

// Blocks until the point is reached or `context` is being destroyed.
void wait_unless_stopping(const Point& point, Context& context);

}  // namespace softgpu::driver
