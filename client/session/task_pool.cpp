#include "client/session/task_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include <pthread.h>

#include "client/settings/settings.h"
#include "common/base/cancellation_off.h"
#include "common/base/cpu_pause.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/start_thread.h"

namespace rcuda::client {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

// One run_parallel call. The last thread that releases the Job destroys it. `task` is on the
// caller's stack and is used only while a task runs.
struct Job {
  const std::function<void(size_t)>* task = nullptr;
  size_t count = 0;
  std::atomic<size_t> next{0};
  std::atomic<size_t> finished{0};
  std::atomic<bool> ended{false};  // tasks that have not begun are skipped
  Mutex mutex;
  CondVar done;
  std::exception_ptr thrown RCUDA_GUARDED_BY(mutex);  // the first exception

  void work() {
    size_t index;
    while ((index = next.fetch_add(1)) < count) {
      const Finish finish{*this};
      if (ended.load()) continue;
      try {
        (*task)(index);
      } catch (const std::exception&) {
        end(std::current_exception());
      }
    }
  }
  void end(std::exception_ptr why) {
    MutexLock lock(mutex);
    ended = true;
    if (!thrown) thrown = std::move(why);
  }
  // Waits until all tasks have finished. Spins first, because a running task usually ends before a
  // sleeping thread would wake up. With fewer than four copy threads it does not spin: there are
  // probably few processors, and the running task may need the processor of this thread.
  void wait() {
    const auto spin = copy_threads() < 4 ? std::chrono::microseconds(0) : kSpin;
    const auto spin_end = std::chrono::steady_clock::now() + spin;
    while (finished.load() != count && std::chrono::steady_clock::now() < spin_end) cpu_pause();
    MutexLock lock(mutex);
    done.wait(lock, [&]() RCUDA_REQUIRES(mutex) { return finished.load() == count; });
  }

  std::exception_ptr failure() {
    MutexLock lock(mutex);
    return thrown;
  }

  // Counts a task as finished, even if it throws.
  struct Finish {
    Job& job;
    ~Finish() {
      if (job.finished.fetch_add(1) + 1 != job.count) return;
      MutexLock lock(job.mutex);
      job.done.notify_all();
    }
  };
  // The destructor of Stay blocks until no other thread of the pool uses the caller's stack, even
  // if an exception unwinds this stack.
  struct Stay {
    Job& job;
    ~Stay() {
      job.ended = true;
      job.work();
      job.wait();
    }
  };
};

class Pool {
 public:
  void help(const std::shared_ptr<Job>& job, size_t helpers) {
    MutexLock lock(mutex_);
    while (threads_ < helpers) {
      std::thread thread;
      if (const Status started = start_thread(&thread, [this] { run(); }); !started.ok()) {
        if (!std::exchange(warned_, true)) {
          RCUDA_WARN(
              "%zu thread(s) for large copies cannot be started, so these copies are slower: "
              "%s",
              helpers - threads_, started.context().c_str());
        }
        break;
      }
      thread.detach();
      ++threads_;
    }
    // The caller works too, so the job ends even if no thread helps.
    for (size_t i = 0; i < std::min(helpers, threads_); ++i) queue_.push_back(job);
    ready_.notify_all();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "rcuda-copy");
    while (true) {
      std::shared_ptr<Job> job;
      {
        MutexLock lock(mutex_);
        ready_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return !queue_.empty(); });
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      job->work();
    }
  }

  Mutex mutex_;
  CondVar ready_;
  std::deque<std::shared_ptr<Job>> queue_ RCUDA_GUARDED_BY(mutex_);
  size_t threads_ RCUDA_GUARDED_BY(mutex_) = 0;
  bool warned_ RCUDA_GUARDED_BY(mutex_) = false;
};

// Never destroyed: its threads wait until the process ends.
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

}  // namespace

size_t copy_threads() {
  static const auto threads = static_cast<size_t>(settings().copy_threads.get());
  return threads;
}

void run_parallel(size_t count, const std::function<void(size_t)>& task) {
  const size_t helpers = std::min(count, copy_threads()) - (count > 0 ? 1 : 0);
  if (helpers == 0) {
    for (size_t i = 0; i < count; ++i) task(i);
    return;
  }
  const CancellationOff off;
  auto job = std::make_shared<Job>();
  job->task = &task;
  job->count = count;
  {
    const Job::Stay stay{*job};
    pool().help(job, helpers);
    job->work();
    job->wait();
  }
  if (const std::exception_ptr thrown = job->failure()) std::rethrow_exception(thrown);
}

}  // namespace rcuda::client
