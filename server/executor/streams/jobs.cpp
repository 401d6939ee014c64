#include "server/executor/streams/jobs.h"

#include <utility>

namespace rcuda::server {

void Jobs::post(std::function<void()> job) {
  {
    MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake();
}

void Jobs::wake() {
  any_ = true;
  link_.interrupt();
}

bool Jobs::run() {
  if (!any_.load(std::memory_order_relaxed)) return false;
  std::vector<std::function<void()>> jobs;
  {
    MutexLock lock(mutex_);
    any_ = false;
    jobs.swap(jobs_);
  }
  if (jobs.empty()) return true;
  work_.note();
  for (const auto& job : jobs) job();
  return true;
}

}  // namespace rcuda::server
