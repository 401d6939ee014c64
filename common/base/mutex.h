// Mutex, MutexLock and CondVar: the standard library's, with Clang's attributes for thread safety.
// With them, Clang checks that code which uses guarded data holds the mutex
// (scripts/thread_safety). The classes cost the same as the standard library's. Other compilers
// ignore the attributes.
//
//   Mutex mutex_;
//   std::vector<Job> jobs_ RCUDA_GUARDED_BY(mutex_);
//   void add_locked(Job job) RCUDA_REQUIRES(mutex_);             // the caller holds mutex_
//   ready_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return !jobs_.empty(); });
//
// A function that unlocks its caller's lock takes it as an argument:
//
//   void call_out(MutexLock& lock) RCUDA_REQUIRES(mutex_, lock);              // locks it again
//   void notify(MutexLock& lock) RCUDA_REQUIRES(mutex_) RCUDA_RELEASE(lock);  // leaves it unlocked
//
// The analysis has gaps: it skips constructors and destructors, does not know that two expressions
// name the same mutex, and does not notice when an unlocked lock is passed to a CondVar.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

#ifdef __clang__
#define RCUDA_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define RCUDA_THREAD_SAFETY(...)
#endif

// Attributes of classes.
#define RCUDA_CAPABILITY(name) RCUDA_THREAD_SAFETY(capability(name))
#define RCUDA_SCOPED_CAPABILITY RCUDA_THREAD_SAFETY(scoped_lockable)
// Attribute of a variable: the mutex that guards the variable.
#define RCUDA_GUARDED_BY(mutex) RCUDA_THREAD_SAFETY(guarded_by(mutex))
// Attributes of a function: the mutexes that the caller must or must not hold, or that the function
// (un)locks.
#define RCUDA_REQUIRES(...) RCUDA_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define RCUDA_EXCLUDES(...) RCUDA_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define RCUDA_ACQUIRE(...) RCUDA_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define RCUDA_ACQUIRE_SHARED(...) RCUDA_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define RCUDA_RELEASE(...) RCUDA_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define RCUDA_TRY_ACQUIRE(...) RCUDA_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define RCUDA_RETURN_CAPABILITY(mutex) RCUDA_THREAD_SAFETY(lock_returned(mutex))
// Each use needs a comment that says why the analysis fails.
#define RCUDA_NO_THREAD_SAFETY_ANALYSIS RCUDA_THREAD_SAFETY(no_thread_safety_analysis)

namespace rcuda {

class RCUDA_CAPABILITY("mutex") Mutex {
 public:
  void lock() RCUDA_ACQUIRE() { mutex_.lock(); }
  void unlock() RCUDA_RELEASE() { mutex_.unlock(); }
  bool try_lock() RCUDA_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// A MutexLock is also a capability, so that a function with a MutexLock parameter can declare that
// the lock is held.
class RCUDA_CAPABILITY("lock") RCUDA_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) RCUDA_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  MutexLock(Mutex& mutex, std::defer_lock_t) RCUDA_EXCLUDES(mutex)
      : lock_(mutex.mutex_, std::defer_lock) {}
  ~MutexLock() RCUDA_RELEASE() {}
  MutexLock(const MutexLock&) = delete;

  void lock() RCUDA_ACQUIRE() { lock_.lock(); }
  void unlock() RCUDA_RELEASE() { lock_.unlock(); }
  bool try_lock() RCUDA_TRY_ACQUIRE(true) { return lock_.try_lock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Allows one writer or many readers at a time.
class RCUDA_CAPABILITY("mutex") SharedMutex {
 private:
  friend class ReaderLock;
  friend class WriterLock;
  std::shared_mutex mutex_;
};

class RCUDA_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) RCUDA_ACQUIRE_SHARED(mutex) : lock_(mutex.mutex_) {}
  ~ReaderLock() RCUDA_RELEASE() {}
  ReaderLock(const ReaderLock&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

class RCUDA_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) RCUDA_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~WriterLock() RCUDA_RELEASE() {}
  WriterLock(const WriterLock&) = delete;

 private:
  std::unique_lock<std::shared_mutex> lock_;
};

// Has the functions of std::condition_variable.
class CondVar {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  void wait(MutexLock& lock) RCUDA_REQUIRES(lock) { condition_.wait(lock.lock_); }
  template <typename Predicate>
  void wait(MutexLock& lock, Predicate ready) RCUDA_REQUIRES(lock) {
    condition_.wait(lock.lock_, std::move(ready));
  }
  // wait_for() and wait_until() return the predicate's last result; without a predicate, a
  // std::cv_status.
  template <typename Duration, typename... Predicate>
  auto wait_for(MutexLock& lock, const Duration& duration, Predicate... ready)
      RCUDA_REQUIRES(lock) {
    return condition_.wait_for(lock.lock_, duration, std::move(ready)...);
  }
  template <typename Time, typename... Predicate>
  auto wait_until(MutexLock& lock, const Time& deadline, Predicate... ready) RCUDA_REQUIRES(lock) {
    return condition_.wait_until(lock.lock_, deadline, std::move(ready)...);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace rcuda
