// EndWatch: ends a worker whose session is over but whose executor thread does not return from a
// call into the driver.
//
// In many calls a driver waits until kernels have finished (driver 580: loading a module,
// destroying a context, a launch into a full queue), and a kernel may never finish. While the
// executor thread is in such a call, it cannot notice that its client has left or that the server
// stops. An EndWatch watches from another thread. It ends the process `patience` after the session
// should have ended. This also ends the kernel and releases everything that the session had, as
// with a local process.
// Threads: one of its own, from start() to the destructor. Blocking: the destructor, until that
// thread has ended. Errors: start() fails if the thread cannot be started.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace rcuda::server {

class EndWatch {
 public:
  // `over` returns the reason why the session should have ended, or ok while it should continue. It
  // runs on the watch's thread and must not block. `expire` runs if the session then continues for
  // `patience`. By default it logs the reason and ends the process.
  EndWatch(std::function<Status()> over, std::chrono::nanoseconds patience,
           std::function<void(const Status& why)> expire = {});
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

  Status start();

 private:
  void run();

  const std::function<Status()> over_;
  const std::chrono::nanoseconds patience_;
  const std::function<void(const Status& why)> expire_;
  Mutex mutex_;
  CondVar changed_;
  bool ended_ RCUDA_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rcuda::server
