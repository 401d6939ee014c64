// Doorbell: lets a thread sleep until a word in memory changes. The thread that changes the word
// wakes the sleeper, and makes no system call if no thread sleeps.
//
// Every Link uses one or two doorbells. With shared memory, their state lies in the header page of
// the window, and both processes use it; otherwise it is private. Any number of threads may call
// sleep(); the thread that made something visible calls ring(). Neither function allocates. A peer
// that corrupts the shared state can only cause spurious or lost wake-ups in this session. This
// side can still wake its own threads, because ring_always() does not read the count of sleepers.
//
// Why no wake-up is lost: a sleeper counts itself (S1), then checks the data (S2), and sleeps only
// while `sequence` has the value it had before S2. A ringer stores the data (R1), then reads the
// count (R2). S1 and R2 are both read-modify-writes of `sleepers`, so one comes first. If R2 is
// first, S1 acquires what R2 released, and S2 sees the data. If S1 is first, R2 sees the sleeper,
// changes `sequence` and calls the kernel, which does not let a thread sleep on the old value. (R2
// adds zero. This addition costs no more than the full fence that would be needed otherwise, and
// the cache line stays with the ringer unless a thread sleeps.)
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace rcuda::transport {

struct DoorbellState {
  std::atomic<uint32_t> sequence{0};
  std::atomic<uint32_t> sleepers{0};
};

class Doorbell {
 public:
  using Clock = std::chrono::steady_clock;

  // `shared`: whether two processes map the state.
  Doorbell(DoorbellState* state, bool shared) : state_(state), shared_(shared) {}

  // Returns true as soon as `ready` does, or false when the deadline has passed. Calls `ready`
  // first.
  bool sleep(const std::function<bool()>& ready, Clock::time_point deadline);

  // Wakes the sleepers, if any. Call it after storing the data. Returns true if it made a system
  // call.
  bool ring() {
    if (state_->sleepers.fetch_add(0, std::memory_order_acq_rel) == 0) [[likely]]
      return false;  // R2
    ring_always();
    return true;
  }
  void ring_always();

 private:
  DoorbellState* state_;
  bool shared_;
};

}  // namespace rcuda::transport
