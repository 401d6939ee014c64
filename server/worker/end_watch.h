// EndWatch: ends a worker whose session is over but whose thread a call into the driver keeps.
//
// A driver waits in many calls until kernels have finished (580: loading a module, ending a
// context, a launch into a queue that is full), and a kernel may never finish. The executor thread
// sits in such a call and cannot see that its client has left or that the server stops. This
// watches from another thread, and ends the process `patience` after the session should have ended;
// the kernel and all that the session had go with it, as they do with a local process.
// One thread of its own, from start() to the destructor, which does not wait for anything else.
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
  // `over` says why the session should have ended, or ok while it should not; any thread may call
  // it, and it does not block. `expire` is called where the session goes on for `patience`
  // nevertheless; by default it says so and ends the process.
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
