// Jobs: lets other threads run functions on the executor thread, between two commands.
//
// Threads: post(), wake() and any() from any thread, run() on the executor thread. Nothing blocks.
// Jobs that were not run when the session ends are dropped.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "server/executor/streams/work_count.h"

namespace rcuda::server {

class Jobs {
 public:
  // Both outlive this object. post() wakes a thread that waits in link.wait().
  Jobs(transport::Link& link, WorkCount& work) : link_(link), work_(work) {}

  void post(std::function<void()> job);
  // Wakes the executor thread, as post() does, without a job.
  void wake();
  bool any() const { return any_.load(); }
  // Runs the jobs; a job may queue work. Returns whether post() or wake() was called since the last
  // run().
  bool run();

 private:
  transport::Link& link_;
  WorkCount& work_;
  Mutex mutex_;
  std::vector<std::function<void()>> jobs_ RCUDA_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
};

}  // namespace rcuda::server
