#include "common/base/mutex.h"

#include <thread>
#include <type_traits>

#include <gtest/gtest.h>

namespace rcuda {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Box {
  Mutex mutex;
  CondVar changed;
  int value RCUDA_GUARDED_BY(mutex) = 0;
};

// Tries to lock from another thread, because a thread must not lock a mutex that it already holds.
bool is_locked(Mutex& mutex) {
  bool free = false;
  std::thread([&] {
    free = mutex.try_lock();
    if (free) mutex.unlock();
  }).join();
  return !free;
}

static_assert(sizeof(Mutex) == sizeof(std::mutex));
static_assert(sizeof(CondVar) == sizeof(std::condition_variable));
static_assert(sizeof(MutexLock) == sizeof(std::unique_lock<std::mutex>));
static_assert(!std::is_copy_constructible_v<MutexLock> && !std::is_move_constructible_v<MutexLock>);
// A variable with static storage needs no code that runs when the library is loaded.
constinit Mutex constant;

TEST(MutexTest, IsHeldWhileTheLockExists) {
  {
    MutexLock lock(constant);
    EXPECT_TRUE(is_locked(constant));
  }
  EXPECT_FALSE(is_locked(constant));
}

TEST(MutexTest, ALockIsReleasedAndTakenAgain) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    lock.unlock();
    EXPECT_FALSE(is_locked(mutex));
    lock.lock();
    EXPECT_TRUE(is_locked(mutex));
    lock.unlock();
  }
  EXPECT_FALSE(is_locked(mutex));
}

TEST(MutexTest, ADeferredLockTakesTheMutexOnlyIfItIsFree) {
  Mutex mutex;
  mutex.lock();
  bool taken = true;
  std::thread([&] {
    MutexLock lock(mutex, std::defer_lock);
    taken = lock.try_lock();
    if (taken) lock.unlock();
  }).join();
  EXPECT_FALSE(taken);
  mutex.unlock();
  {
    MutexLock lock(mutex, std::defer_lock);
    EXPECT_FALSE(is_locked(mutex));
    if (lock.try_lock()) {
      EXPECT_TRUE(is_locked(mutex));
    } else {
      ADD_FAILURE() << "a free mutex was not locked";
    }
  }
  EXPECT_FALSE(is_locked(mutex));
}

TEST(MutexTest, FunctionsOfTheStandardLibraryTakeIt) {
  Mutex first, second;
  {
    const std::scoped_lock both(first, second);
    EXPECT_TRUE(is_locked(first));
    EXPECT_TRUE(is_locked(second));
  }
  EXPECT_FALSE(is_locked(first));
  first.lock();
  { const std::unique_lock adopted(first, std::adopt_lock); }
  EXPECT_FALSE(is_locked(first));
}

TEST(CondVarTest, AWaiterSleepsUntilThePredicateHolds) {
  Box box;
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      MutexLock lock(box.mutex);
      ++box.value;
      box.changed.notify_all();
    }
  });
  {
    MutexLock lock(box.mutex);
    box.changed.wait(lock, [&]() RCUDA_REQUIRES(box.mutex) { return box.value == 3; });
    EXPECT_EQ(box.value, 3);
    EXPECT_TRUE(is_locked(box.mutex));
  }
  other.join();
}

TEST(CondVarTest, ADeadlineEndsAWait) {
  Box box;
  MutexLock lock(box.mutex);
  const auto never = []() { return false; };
  EXPECT_FALSE(box.changed.wait_for(lock, milliseconds(1), never));
  EXPECT_FALSE(box.changed.wait_until(lock, Clock::now() + milliseconds(1), never));
  EXPECT_EQ(box.changed.wait_until(lock, Clock::now() - milliseconds(1)), std::cv_status::timeout);
  EXPECT_TRUE(is_locked(box.mutex));
}

}  // namespace
}  // namespace rcuda
