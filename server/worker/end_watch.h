// EndWatch: ends a worker whose session is over but whose thread a call into the driver keeps.
//
// In many calls a driver waits until kernels have finished (580: loading a module, ending a
// context, a launch into a full queue), and a kernel may never finish. The executor thread is in
// such a call then and cannot see that its client has left or that the server stops. An EndWatch
// watches from another thread. It ends the process `patience` after the session should have ended,
// and with it the kernel and all that the session had, as with a local process. Threads: one of its
// own, from start() to the destructor. Blocking: the destructor, for that thread only. Errors:
// start() fails without a thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common/base/status.h"

namespace rcuda::server {

class EndWatch {
 public:
  // `over` says why the session should have ended, or ok while it should go on. It is called on the
  // watch's thread and must not block. `expire` is called if the session then goes on for
  // `patience`. By default it logs that and ends the process.
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
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace rcuda::server
