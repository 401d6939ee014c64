// The thread that takes events from a worker: what kernels printed, and host functions that a stream
// has reached.
//
// Output is written to this process's stdout or stderr by the event thread itself, in order. Host
// functions run on a second thread, made with the first of them, because the application's code may
// take as long as it likes while output must go on. A host function may not call CUDA:
// in_host_function() tells entry points, which return CUDA_ERROR_NOT_PERMITTED.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>

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
  ~EventThread();  // stops both threads; a host function that is running is waited for

  // The worker's first event. Blocks until it came, the Link broke or the deadline passed.
  Result<wire::ReadyEvent> ready(std::chrono::steady_clock::time_point deadline);

  // Registers a host function; the id goes into LaunchHostBody. `once`: forgotten after it ran
  // (graphs run theirs many times). `function` gets the stream's status.
  uint64_t add_callback(std::function<void(CUresult)> function, bool once);
  void remove_callback(uint64_t id);

  // Returns once everything that the worker had published when it was called has been taken.
  void drain_output();

  using TraceSink = std::function<void(std::span<const wire::TraceEvent>)>;
  void set_trace_sink(TraceSink sink);

 private:
  struct Callback {
    std::function<void(CUresult)> function;
    bool once = true;
  };

  void run_events();
  void run_callbacks();
  void handle(std::span<const std::byte> frame);

  transport::Link& link_;
  wire::RingReader ring_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> handled_up_to_;  // where in the window the first frame not yet handled starts

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ready_ = false;
  wire::ReadyEvent ready_{};
  std::unordered_map<uint64_t, Callback> callbacks_;
  uint64_t next_callback_ = 1;
  std::deque<wire::HostCallbackEvent> pending_;
  TraceSink trace_sink_;

  std::thread callback_thread_;
  std::thread event_thread_;  // last: starts when everything else stands
};

}  // namespace rcuda::client
