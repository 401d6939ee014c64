// Code that Clang's thread safety analysis must refuse, for scripts/thread_safety: -Xclang -verify
// compares the diagnostics with the comments below. No target compiles this file.
#include "common/base/mutex.h"

namespace rcuda {

class Misuse {
 public:
  void use_without_lock() { ++value_; }  // expected-error {{writing variable 'value_' requires}}
  void call_without_lock() { add(); }    // expected-error {{calling function 'add' requires}}
  void lock_twice() {
    MutexLock lock(mutex_);  // expected-note {{mutex acquired here}}
    mutex_.lock();           // expected-error {{acquiring mutex 'mutex_' that is already held}}
  }
  void use_after_unlock() {
    MutexLock lock(mutex_);
    lock.unlock();
    ++value_;  // expected-error {{writing variable 'value_' requires}}
  }
  void use_after_call_that_unlocks() {
    MutexLock lock(mutex_);
    unlock(lock);
    ++value_;  // expected-error {{writing variable 'value_' requires}}
  }
  void wait_for_what_the_lock_does_not_guard() {
    MutexLock lock(other_);
    changed_.wait(lock, [this] {
      return value_ != 0;  // expected-error {{reading variable 'value_' requires}}
    });
  }
  void ignore_a_failure_to_lock() {
    MutexLock lock(mutex_, std::defer_lock);
    (void)lock.try_lock();
    ++value_;  // expected-error {{writing variable 'value_' requires}}
  }
  void keep_locked() { mutex_.lock(); }  // expected-note {{mutex acquired here}} \
                                         // expected-error {{mutex 'mutex_' is still held}}

  void right() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return value_ != 0; });
    add();
    leave_and_return(lock);
    ++value_;
    unlock(lock);
  }

 private:
  void add() RCUDA_REQUIRES(mutex_) { ++value_; }
  void unlock(MutexLock& lock) RCUDA_REQUIRES(mutex_) RCUDA_RELEASE(lock) { lock.unlock(); }
  void leave_and_return(MutexLock& lock) RCUDA_REQUIRES(mutex_, lock) {
    lock.unlock();
    lock.lock();
    ++value_;
  }

  Mutex mutex_;
  Mutex other_;
  CondVar changed_;
  int value_ RCUDA_GUARDED_BY(mutex_) = 0;
};

}  // namespace rcuda
