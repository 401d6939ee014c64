#include "softgpu/driver/worker_threads.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <signal.h>

#include "common/base/log.h"

namespace softgpu::driver {
namespace {

constexpr std::chrono::seconds kIdleLife{1};

struct IdleThread {
  std::condition_variable wake;
  std::function<void()> job;
};

class WorkerThreads {
 public:
  void post(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        IdleThread* thread = idle_.back();  // the most recently used: its cache is warm
        idle_.pop_back();
        thread->job = std::move(job);
        thread->wake.notify_one();
        return;
      }
      backlog_.push_back(std::move(job));
    }
    start_thread();
  }

 private:
  void start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { work(); }).detach();
    } catch (const std::system_error& error) {
      // The job stays in the backlog and runs when another thread becomes free.
      RCUDA_ERROR(
          "cannot start a thread for a stream; its work waits until another thread is free: %s",
          error.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void work() {
    pthread_setname_np(pthread_self(), "softgpu-stream");
    IdleThread self;
    std::unique_lock lock(mutex_);
    for (;;) {
      std::function<void()> job;
      if (!backlog_.empty()) {
        job = std::move(backlog_.front());
        backlog_.pop_front();
      } else {
        idle_.push_back(&self);
        self.wake.wait_for(lock, kIdleLife, [&] { return self.job != nullptr; });
        if (self.job == nullptr) {
          std::erase(idle_, &self);
          return;
        }
        job = std::exchange(self.job, nullptr);
      }
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::vector<IdleThread*> idle_;
  std::deque<std::function<void()>> backlog_;
};

WorkerThreads& worker_threads() {
  static auto* threads = new WorkerThreads;  // never destroyed: its threads outlive static objects
  return *threads;
}

}  // namespace

void post_to_worker(std::function<void()> job) { worker_threads().post(std::move(job)); }

}  // namespace softgpu::driver
