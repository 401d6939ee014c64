// WorkerEvents: takes events from a worker: the output of kernels, host functions that a stream has
// reached, and notices about the session.
//
// The object has these threads:
// - The event thread writes output to this process's stdout or stderr, in order. The client returns
//   a reply, or ends a wait for a word, only after the output that precedes it is printed.
// - The host function thread runs host functions, because the application's code may take any time.
//   It starts when the first callback is registered, or with start_host_functions().
// - The copy thread makes copies for nodes of graphs, so that the application's functions cannot
//   delay them. It starts when the first graph copy is registered.
// - The release thread destroys callbacks that own memory. It starts with the copy thread.
//
// A host function may not call CUDA: entry points return CUDA_ERROR_NOT_PERMITTED if
// in_host_function() is true.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include <cuda.h>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::client {

// True on a thread that is running an application's host function.
bool in_host_function();

class WorkerEvents {
 public:
  explicit WorkerEvents(transport::Link& link);
  Status start();   // called before all other functions except set_*()
  ~WorkerEvents();  // stops the threads; waits for a host function that is running

  // Returns the worker's first event. Blocks until it arrives, the Link breaks or the deadline
  // passes.
  Result<wire::ReadyEvent> ready(std::chrono::steady_clock::time_point deadline);

  // Registers a host function that runs once and receives the stream's status. The returned id is
  // for LaunchHostBody. `always`: if the worker is lost before it requests the function, the
  // function still runs, with kSessionLost. Returns an error if the thread cannot be started.
  Result<uint64_t> add_callback(std::function<void(CUresult)> function, bool always = false);

  // A callback that graphs of the worker hold by its id: a function that may run any number of
  // times, or only a notification of the release. The callback is removed when the last graph
  // releases it.
  struct GraphCallback {
    std::function<void()> function;
    CUDA_HOST_NODE_PARAMS given{};  // the application's parameters of a host function
    // The application's parameters of a copy between servers, which is a host node in the worker.
    std::shared_ptr<const CUDA_MEMCPY3D> copy;
    // Whether the function only makes a copy. It then runs on the copy thread, so that the
    // application's functions cannot delay it.
    bool is_internal = false;
    // Called after the release, on the host function thread; if is_internal, on the release thread.
    std::function<void()> released;
  };
  Result<uint64_t> add_graph_callback(GraphCallback callback);
  // Sets *given to the application's parameters of a host function. Returns false if the callback
  // has none.
  bool host_function_given(uint64_t id, CUDA_HOST_NODE_PARAMS* given);
  // Like host_function_given(), for the parameters of a copy.
  bool copy_given(uint64_t id, CUDA_MEMCPY3D* given);

  // Whether any callback was ever registered. If none was, no function of the program can be
  // pending.
  bool has_had_callbacks();

  // Removes a function whose id the worker does not know; nothing is called. Returns false if the
  // function is no longer registered: it was called or will be called.
  bool remove_callback(uint64_t id);
  // Call it when the session ends on purpose. Functions that the worker has not requested are then
  // never called.
  void forget_callbacks();
  // Starts the host function thread, for run_later().
  Status start_host_functions();
  // Runs the function on the host function thread, which must have been started.
  void run_later(std::function<void()> function);

  // Blocks until all output that the worker published before this call is printed. Spins first,
  // then sleeps.
  void drain_output();

  // Sets the functions that run before and after a host function if the worker has lent bytes of
  // mirrored memory for it (client/mirror/mirror.h). Called before start().
  void set_mirror_hooks(std::function<void(uint64_t loan)> arrived,
                        std::function<void(uint64_t loan)> leave) {
    mirrors_arrived_ = std::move(arrived);
    mirrors_leave_ = std::move(leave);
  }

  // Called on the event thread with the worker's lines about the session. `ends`: the server ends
  // the session, for the reason in `text`. Set before start().
  using NoticeSink = std::function<void(bool ends, const std::string& text)>;
  void set_notice_sink(NoticeSink sink) { notice_sink_ = std::move(sink); }

  // Called on the event thread if the worker's events are invalid. The sink makes the session lost
  // and logs the reason. Without a sink, the Link is closed. Set before start().
  using LossSink = std::function<void(const Status& why)>;
  void set_loss_sink(LossSink sink) { loss_sink_ = std::move(sink); }

  using TraceSink = std::function<void(std::span<const wire::TraceEvent>)>;
  void set_trace_sink(TraceSink sink);

 private:
  struct Once {
    std::function<void(CUresult)> function;
    bool always = false;
  };
  using Shared = std::shared_ptr<const GraphCallback>;

  // Runs functions in order on a thread of its own. Guarded by mutex_.
  struct Runner {
    const char* name;  // of the thread
    bool runs_application;
    std::thread thread;
    std::deque<std::function<void()>> pending;
  };

  void run_events();
  bool is_drained(uint64_t since) const;
  void run(Runner& runner);
  void handle(std::span<const std::byte> frame);
  bool notice(std::span<const std::byte> frame);
  void host_callback(const wire::HostCallbackEvent& event);
  void released(uint64_t id);
  void call_after_loss();
  void acknowledge(const wire::HostCallbackEvent& event);
  void lose(const Status& why);
  Status start_locked(Runner& runner) RCUDA_REQUIRES(mutex_);
  void enqueue(Runner& runner, std::function<void()> work) RCUDA_REQUIRES(mutex_);

  transport::Link& link_;
  wire::RingReader ring_;
  std::atomic<bool> stop_{false};
  // handled_: RingReader::consumed() after the last handled event. taking_: the event thread is
  // looking for an event or handling one. Both are written by the event thread only.
  std::atomic<uint64_t> handled_{0};
  std::atomic<bool> taking_{false};
  Mutex drained_mutex_;  // for threads that wait for handled_ and taking_
  CondVar drained_;

  Mutex mutex_;
  CondVar changed_;
  bool is_ready_ RCUDA_GUARDED_BY(mutex_) = false;
  wire::ReadyEvent ready_{};
  std::map<uint64_t, Once> callbacks_ RCUDA_GUARDED_BY(mutex_);  // oldest first
  std::unordered_map<uint64_t, Shared> graph_callbacks_ RCUDA_GUARDED_BY(mutex_);
  static constexpr uint64_t kFirstCallback = 1;
  uint64_t next_callback_ RCUDA_GUARDED_BY(mutex_) = kFirstCallback;
  // Slots whose request is not acknowledged yet. The worker waits for the acknowledgement, so a
  // slot has at most one request.
  std::bitset<wire::WorkerWindow::kCallbackSlots> requested_ RCUDA_GUARDED_BY(mutex_);
  TraceSink trace_sink_;
  NoticeSink notice_sink_;
  LossSink loss_sink_;
  std::function<void(uint64_t loan)> mirrors_arrived_, mirrors_leave_;

  Runner host_functions_{"rcuda-hostfn", true, {}, {}};
  Runner copies_{"rcuda-graphcopy", false, {}, {}};
  // Destroys callbacks that own memory. Freeing the memory waits for the device, which may wait for
  // a host function or a copy. So the threads that run these must not free memory.
  Runner releases_{"rcuda-release", false, {}, {}};
  std::thread event_thread_;
};

}  // namespace rcuda::client
