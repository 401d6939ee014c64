// Timelines and points: how streams and threads wait for work of this process. (Words of memory and
// events of other processes have no Timeline: memop.h, interprocess_event.h.)
//
// A Timeline is a counter that only rises. A stream's timeline counts its finished operations; the
// timeline of an event recorded by a graph node goes from 0 to 1. A Point is "timeline T has
// reached n". Event records, implicit waits on the default stream and ordered graph launches are
// all Points.
//
// Threads: any thread may call any function. complete() is called by one thread at a time, with
// rising values. wait() blocks (spins for 20 us, then sleeps); notify_at() does not. Callbacks run
// on the completing thread without locks held, and must not block. A Timeline exists as long as a
// Point refers to it, even after the end of its stream.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace softgpu::driver {

class Timeline {
 public:
  bool reached(uint64_t value) const {
    // Pairs with the store in complete().
    return completed_.load(std::memory_order_acquire) >= value;
  }
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }

  // Raises the counter, wakes waiters and runs the callbacks that are due. A lower value is
  // ignored.
  void complete(uint64_t value);

  void wait(uint64_t value);

  // Calls `callback` once the counter has reached `value`. If it has reached `value` already, does
  // not call `callback`, and returns false.
  bool notify_at(uint64_t value, std::function<void()> callback);

 private:
  std::atomic<uint64_t> completed_{0};
  // The number of sleepers and callbacks. A waiter raises it before it reads completed_; complete()
  // reads it after storing completed_ (both sequentially consistent). So the waiter sees the new
  // value, or complete() sees the waiter.
  std::atomic<uint32_t> waiting_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<uint64_t, std::function<void()>> callbacks_;
};

struct Point {
  std::shared_ptr<Timeline> timeline;  // null: always reached
  uint64_t value = 0;

  bool reached() const { return timeline == nullptr || timeline->reached(value); }
  void wait() const {
    if (timeline != nullptr) timeline->wait(value);
  }
};

// Calls `done` until it returns true, but not longer than about `spin_ns`. Returns its last result.
bool spin_until(const std::function<bool()>& done, int64_t spin_ns);

// CLOCK_MONOTONIC in nanoseconds: the clock of event times.
int64_t now_ns();

}  // namespace softgpu::driver
