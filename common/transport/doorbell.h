// Doorbell: how a thread sleeps until a word in memory changes, and how whoever changes it wakes
// the sleeper without a system call when there is none.
//
// Used by every Link. For shared memory the state lies in the window's header page and both
// processes use it; otherwise it is private. sleep() runs on any number of waiting threads; ring()
// on the thread that made something visible; neither allocates. A peer that scribbles over the
// shared state can only cost this session spurious or lost wake-ups: ring_always() does not depend
// on the sleeper count.
//
// Why no wake-up is lost. A sleeper counts itself (S1), then looks at the data (S2), and sleeps
// only while `sequence` is what it was before S2. A ringer stores the data (R1), then reads the
// count (R2). S1 and R2 are both read-modify-writes of `sleepers`, so one comes first: if R2 does,
// S1 acquires what it released and S2 sees the data; if S1 does, R2 sees the sleeper, changes
// `sequence` and calls the kernel, which refuses to put anyone to sleep on the old value. (Adding
// zero is no dearer than the full fence it replaces, and the line is the ringer's own unless
// somebody sleeps.)
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

  // `shared`: the state is mapped by two processes.
  Doorbell(DoorbellState* state, bool shared) : state_(state), shared_(shared) {}

  // Returns true as soon as `ready` does, false when the deadline passed. `ready` runs first.
  bool sleep(const std::function<bool()>& ready, Clock::time_point deadline);

  // Wakes the sleepers, if any; call after the data is stored. True if a system call was needed.
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
