// PoolDemand: how many idle workers a pool should have, by the sessions that came lately, and how
// many of them may be started now.
//
// Programs that start at the same time take the idle workers, and the rest of the programs wait
// until more workers have started. If that happens, more such programs are likely to come soon, for
// example the next step of a job with eight processes. So the pool grows to the number of clients
// that came within a second (the start of two workers takes about as long), and shrinks again when
// fewer clients have come for a while.
//
// The start of a worker takes half a second, and holds the driver's locks for much of this time.
// Meanwhile allocations, frees, copies, sorts and loads of modules of running programs take up to
// twice as long, and programs do most of this in their first moments. So a worker that was taken is
// replaced when its session is over or no longer young, and the pool grows when no session is
// young. A worker for a client that waits still starts immediately (WorkerPool::refill()).
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
  // How long a session is young.
  static constexpr auto kYoung = std::chrono::seconds(3);

  // `least`: the number of idle workers without demand; 0: the pool never has idle workers. `most`:
  // the highest number of idle workers; a value below `least` counts as `least`. `keep`: how long
  // the pool stays large after many clients came.
  PoolDemand(size_t least, size_t most, std::chrono::nanoseconds keep)
      : least_(least), most_(least ? std::max(least, most) : 0), keep_(keep) {}

  // Records the number of clients that wait for a worker now.
  void waiting(size_t clients, Time now);
  // Records that a client got a worker: the client that has waited longest, or a client that did
  // not wait.
  void taken(Time now);
  // The number of idle workers that are wanted.
  size_t idle(Time now) const;
  // A worker may start for the pool while fewer workers than this number are idle or starting.
  // `young`: the number of young sessions.
  size_t due(size_t young, Time now) const {
    return young == 0 ? idle(now) : least_ - std::min(least_, young);
  }
  // When idle() changes without a call of waiting() or taken(); Time::max(): never.
  Time next_change(Time now) const;

 private:
  struct Peak {
    size_t sessions;  // how many clients came within kSpan; more than least_
    Time at;
  };

  const size_t least_, most_;
  const std::chrono::nanoseconds keep_;
  std::deque<Time> waiting_;  // the arrivals of the clients that wait
  // The arrivals of the last clients that got a worker: those within kSpan, most_ at most.
  std::deque<Time> lately_;
  // The largest peak within the last keep_, then the largest peak after that one, and so on.
  std::deque<Peak> peaks_;
};

}  // namespace rcuda::server
