// OutputCapture: what kernels print, on its way from this process's stdout and stderr to the
// client.
//
// A driver writes device printf to the process's stdout, and failed assertions to its stderr, when
// something synchronises. Both descriptors become pipes here; a thread reads them, so that the
// driver never blocks on a full pipe, and drain() reads what is left on the spot, so that a caller
// knows that all of it was published. What the process itself has to say must go elsewhere (the
// log's own file). One per process, since descriptors are the process's. drain() may be called from
// any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/executor/event_sink.h"

namespace rcuda::server {

class OutputCapture {
 public:
  // Takes descriptors 1 and 2 over until destroyed. The sink may be set and changed later; output
  // without a sink goes where it went before.
  static Result<std::unique_ptr<OutputCapture>> start();
  ~OutputCapture();

  void set_sink(EventSink* sink);
  // Publishes everything that was written so far.
  void drain();

 private:
  struct Stream {
    int descriptor = -1;  // 1 or 2
    UniqueFd before;      // where it led
    UniqueFd read_end;
  };

  OutputCapture() = default;
  void run();
  void drain_locked();

  std::mutex mutex_;  // held from reading to publishing, which keeps the text in order
  EventSink* sink_ = nullptr;
  Stream streams_[2];
  UniqueFd stop_event_;
  std::thread thread_;
};

}  // namespace rcuda::server
