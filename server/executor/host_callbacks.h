// HostCallbacks: host functions of the application, run by its client when a stream reaches them.
//
// The driver calls a trampoline on a thread of its own. That publishes a HostCallbackEvent and
// waits, holding the stream, until the client has run the function and written the ack word, or
// until the Link broke: then the stream goes on, for nobody will look at its results. make() and
// launch() run on the executor thread; the trampolines on the driver's threads, at any time until
// the driver is shut down. A function that a graph may hold lives as long as the session.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"
#include "server/executor/dispatch.h"

namespace rcuda::server {

struct StreamRef;

class HostCallbacks {
 public:
  explicit HostCallbacks(Executor& executor);
  ~HostCallbacks();

  HostFunction make(uint64_t callback);
  CUresult launch(const StreamRef& stream, uint64_t callback, bool is_stream_callback);

 private:
  struct Callback {
    HostCallbacks* owner;
    uint64_t id;
    bool once;
  };

  static void CUDA_CB run_host_function(void* argument);
  static void CUDA_CB run_stream_callback(CUstream stream, CUresult status, void* argument);
  void run(Callback* callback, CUresult status);
  Callback* create(uint64_t callback, bool once);
  uint32_t take_slot();
  void return_slot(uint32_t slot);

  Executor& executor_;
  std::mutex mutex_;
  std::condition_variable slot_free_;
  std::vector<std::unique_ptr<Callback>> kept_;  // for graphs
  std::vector<uint32_t> free_slots_;
  std::array<uint64_t, wire::WorkerWindow::kCallbackSlots> sequences_{};  // last used, by slot
};

}  // namespace rcuda::server
