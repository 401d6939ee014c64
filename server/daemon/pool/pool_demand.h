// PoolDemand: how many idle workers a pool should have, by the sessions that came lately.
//
// Programs that start at once take the idle workers, and the rest of them wait until others have
// started. If that happens, more programs will come at once soon, such as the next step of a job
// with eight processes. So the pool grows to what was taken from it within a second (about what the
// start of a worker takes), and shrinks again when that has not happened for a while.
//
// Threads: the daemon's. Nothing blocks. Errors: none.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>

namespace rcuda::server {

class PoolDemand {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr auto kSpan = std::chrono::seconds(1);

  // `least`: idle workers without demand; 0: none are ever wanted. `most`: with any demand; not
  // below `least`. `keep`: how long the pool stays large.
  PoolDemand(size_t least, size_t most, std::chrono::nanoseconds keep)
      : least_(least), most_(least ? std::max(least, most) : 0), keep_(keep) {}

  // A session has taken a worker from the pool.
  void taken(Time now);
  // The idle workers that are wanted.
  size_t idle(Time now) const;
  // When idle() changes without a call of the above; Time::max(): not at all.
  Time next_change(Time now) const;

 private:
  const size_t least_, most_;
  const std::chrono::nanoseconds keep_;
  std::deque<Time> lately_;  // within kSpan before the last one; most_ at most
  // The largest number of sessions within kSpan, and when it was last reached.
  size_t peak_ = 0;
  Time peak_at_{};
};

}  // namespace rcuda::server
