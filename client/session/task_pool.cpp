#include "client/session/task_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <pthread.h>

#include "common/base/log.h"
#include "common/base/start_thread.h"

namespace rcuda::client {
namespace {

// One run_parallel call; lives until its last task and its last helper are done with it.
struct Job {
  const std::function<void(size_t)>* task = nullptr;
  size_t count = 0;
  std::atomic<size_t> next{0};
  std::atomic<size_t> finished{0};
  std::mutex mutex;
  std::condition_variable done;

  void work() {
    size_t index;
    while ((index = next.fetch_add(1)) < count) {
      (*task)(index);
      if (finished.fetch_add(1) + 1 == count) {
        std::lock_guard lock(mutex);
        done.notify_all();
      }
    }
  }
};

class Pool {
 public:
  void help(const std::shared_ptr<Job>& job, size_t helpers) {
    std::lock_guard lock(mutex_);
    while (threads_ < helpers) {
      std::thread thread;
      if (const Status started = start_thread(&thread, [this] { run(); }); !started.ok()) {
        if (!std::exchange(warned_, true)) {
          RCUDA_WARN("large copies have %zu thread(s) less: %s", helpers - threads_,
                     started.context().c_str());
        }
        break;
      }
      thread.detach();
      ++threads_;
    }
    // The caller works as well, so the job is done without any.
    for (size_t i = 0; i < std::min(helpers, threads_); ++i) queue_.push_back(job);
    ready_.notify_all();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "rcuda-copy");
    while (true) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return !queue_.empty(); });
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      job->work();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Job>> queue_;
  size_t threads_ = 0;
  bool warned_ = false;
};

// Never destroyed: its threads wait to the end of the process.
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

size_t configured_threads() {
  if (const char* text = std::getenv("RCUDA_COPY_THREADS")) {
    const long value = std::strtol(text, nullptr, 10);
    if (value >= 1 && value <= 64) return static_cast<size_t>(value);
  }
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 8);
}

}  // namespace

size_t copy_threads() {
  static const size_t threads = configured_threads();
  return threads;
}

void run_parallel(size_t count, const std::function<void(size_t)>& task) {
  const size_t helpers = std::min(count, copy_threads()) - (count > 0 ? 1 : 0);
  if (helpers == 0) {
    for (size_t i = 0; i < count; ++i) task(i);
    return;
  }
  auto job = std::make_shared<Job>();
  job->task = &task;
  job->count = count;
  pool().help(job, helpers);
  job->work();
  std::unique_lock lock(job->mutex);
  job->done.wait(lock, [&] { return job->finished.load() == count; });
}

}  // namespace rcuda::client
