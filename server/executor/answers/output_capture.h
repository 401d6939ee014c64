// OutputCapture: forwards the output of kernels from this process's stdout and stderr to the
// client.
//
// During a synchronisation, a driver writes device printf to the process's stdout, and failed
// assertions to its stderr. This class replaces both descriptors by pipes. A thread reads the
// pipes, so that a full pipe does not block the driver. drain() reads what this thread has not read
// yet: when drain() returns, all output so far is published. The process's own messages must go
// elsewhere (the log has its own file).
// A process has at most one OutputCapture, because the descriptors belong to the process. Threads:
// it starts a reader thread; all functions may be called from any thread. Blocking: drain() and the
// reader thread block as EventSink::output() does.
// Errors: start() fails if the pipes or the thread cannot be made.
#pragma once

#include <memory>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/executor/answers/event_sink.h"

namespace rcuda::server {

class OutputCapture {
 public:
  // Takes over descriptors 1 and 2 until destroyed. The sink may be set and changed later. Without
  // a sink, output goes to the original descriptors.
  static Result<std::unique_ptr<OutputCapture>> start();
  ~OutputCapture();

  void set_sink(EventSink* sink);
  // Publishes everything that was written so far.
  void drain();

 private:
  struct Stream {
    int descriptor = -1;  // 1 or 2
    UniqueFd before;      // a copy of the original descriptor
    UniqueFd read_end;
  };

  OutputCapture() = default;
  void run();
  void drain_locked() RCUDA_REQUIRES(mutex_);

  Mutex mutex_;  // held from reading to publishing, to keep the text in order
  EventSink* sink_ RCUDA_GUARDED_BY(mutex_) = nullptr;
  Stream streams_[2];
  UniqueFd stop_event_;
  std::thread thread_;
};

}  // namespace rcuda::server
