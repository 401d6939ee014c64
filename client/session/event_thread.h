// The thread that takes events from a worker: what kernels printed, and host functions that a
// stream has reached.
//
// Output is written to this process's stdout or stderr by the event thread itself, in order, and
// every reply waits for that. Host functions run on a second thread, because the application's code
// may take as long as it likes, and copies of graphs on a third, which no reply and no host
// function waits for. Both are made when the first of their kind is registered. A host function may
// not call CUDA: in_host_function() tells entry points, which return CUDA_ERROR_NOT_PERMITTED.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include <cuda.h>

#include "common/transport/link.h"
#include "common/wire/handshake.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::client {

// True on a thread that is running an application's host function.
bool in_host_function();

class EventThread {
 public:
  explicit EventThread(transport::Link& link);
  Status start();  // before everything else
  ~EventThread();  // stops both threads; a host function that is running is waited for

  // The worker's first event. Blocks until it came, the Link broke or the deadline passed.
  Result<wire::ReadyEvent> ready(std::chrono::steady_clock::time_point deadline);

  // Registers a host function that runs once; the id goes into LaunchHostBody. It gets the stream's
  // status. `always`: also when the worker is lost before it asked for it, with kSessionLost. An
  // error: there can be no thread to run it.
  Result<uint64_t> add_callback(std::function<void(CUresult)> function, bool always = false);

  // What graphs of the worker hold by a number: a function that runs any number of times, or merely
  // something to be told of. Forgotten when the last graph has let go of it.
  struct GraphCallback {
    std::function<void()> function;
    CUDA_HOST_NODE_PARAMS given{};  // what the application gave, when that is a host function
    // What it gave when that is a copy node, which the worker has a host node for.
    std::shared_ptr<const CUDA_MEMCPY3D> copy;
    // Copies bytes and nothing else: it runs on the thread of the copies, however long the
    // application's own functions take.
    bool is_internal = false;
    std::function<void()> released;  // then called, where host functions run
  };
  Result<uint64_t> add_graph_callback(GraphCallback callback);
  // What add_graph_callback() was given for a host function; false when it was none.
  bool host_function_given(uint64_t id, CUDA_HOST_NODE_PARAMS* given);
  // The same for a copy.
  bool copy_given(uint64_t id, CUDA_MEMCPY3D* given);

  // The worker does not know of it: forgotten, and nothing is called. False if there is no such
  // function any more: it has been called, or will be.
  bool remove_callback(uint64_t id);
  // The end is intended: what nobody has asked for by now is not called.
  void forget_callbacks();
  // Makes the thread of the host functions, for run_later().
  Status start_host_functions();
  // Runs it on the thread of the host functions, which has been started.
  void run_later(std::function<void()> function);

  // Returns once all output that the worker had published when it was called is printed. Sleeps
  // where that takes long.
  void drain_output();

  // Run around a host function when the worker has sent the mirrored memory (memory/mirror.h). Set
  // before the first can come.
  void set_mirror_hooks(std::function<void()> arrived, std::function<void()> leave) {
    mirrors_arrived_ = std::move(arrived);
    mirrors_leave_ = std::move(leave);
  }

  using TraceSink = std::function<void(std::span<const wire::TraceEvent>)>;
  void set_trace_sink(TraceSink sink);

 private:
  struct Once {
    std::function<void(CUresult)> function;
    bool always = false;
  };
  using Shared = std::shared_ptr<const GraphCallback>;

  // Runs what it is given, in order, on a thread of its own. Guarded by mutex_.
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
  void host_callback(const wire::HostCallbackEvent& event);
  void released(uint64_t id);
  void call_after_loss();
  void acknowledge(const wire::HostCallbackEvent& event);
  Status start_locked(Runner& runner);
  void enqueue(Runner& runner, std::function<void()> work, std::unique_lock<std::mutex>& lock);

  transport::Link& link_;
  wire::RingReader ring_;
  std::atomic<bool> stop_{false};
  // RingReader::consumed() behind the last event that is handled, and whether one is being handled
  // or looked for. Written by the event thread.
  std::atomic<uint64_t> handled_{0};
  std::atomic<bool> taking_{false};
  std::mutex drained_mutex_;  // of nothing but who waits for these two
  std::condition_variable drained_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ready_ = false;
  wire::ReadyEvent ready_{};
  std::map<uint64_t, Once> callbacks_;  // oldest first
  std::unordered_map<uint64_t, Shared> graph_callbacks_;
  uint64_t next_callback_ = 1;
  TraceSink trace_sink_;
  std::function<void()> mirrors_arrived_, mirrors_leave_;

  Runner host_functions_{"rcuda-hostfn", true, {}, {}};
  Runner copies_{"rcuda-graphcopy", false, {}, {}};
  std::thread event_thread_;
};

}  // namespace rcuda::client
