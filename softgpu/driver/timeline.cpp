#include "softgpu/driver/timeline.h"

#include <utility>
#include <vector>

#include <sched.h>
#include <time.h>

#include "common/base/cpu_pause.h"

namespace softgpu::driver {
namespace {

// How long wait() spins: longer than a stream's running thread needs for a short operation, but so
// short that it costs the waiting program little.
constexpr int64_t kSpinNs = 20'000;

constexpr int64_t kYieldAfterNs = 3'000;

}  // namespace

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool spin_until(const std::function<bool()>& done, int64_t spin_ns) {
  if (done()) return true;
  const int64_t start_ns = now_ns();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      rcuda::cpu_pause();
      if (done()) return true;
    }
    const int64_t spun_ns = now_ns() - start_ns;
    if (spun_ns >= spin_ns) return done();
    // The thread that this one waits for may need this core.
    if (spun_ns >= kYieldAfterNs) sched_yield();
  }
}

void Timeline::complete(uint64_t value) {
  if (completed_.load(std::memory_order_relaxed) >= value) return;
  completed_.store(value, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;

  std::vector<std::function<void()>> due;
  {
    std::lock_guard lock(mutex_);
    const auto end = callbacks_.upper_bound(value);
    for (auto it = callbacks_.begin(); it != end; ++it) due.push_back(std::move(it->second));
    waiting_.fetch_sub(static_cast<uint32_t>(due.size()), std::memory_order_relaxed);
    callbacks_.erase(callbacks_.begin(), end);
    changed_.notify_all();
  }
  for (auto& callback : due) callback();
}

void Timeline::wait(uint64_t value) {
  if (spin_until([&] { return reached(value); }, kSpinNs)) return;
  std::unique_lock lock(mutex_);
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  changed_.wait(lock, [&] { return completed_.load(std::memory_order_seq_cst) >= value; });
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

bool Timeline::notify_at(uint64_t value, std::function<void()> callback) {
  if (reached(value)) return false;
  std::lock_guard lock(mutex_);
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  if (completed_.load(std::memory_order_seq_cst) >= value) {
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  callbacks_.emplace(value, std::move(callback));
  return true;
}

}  // namespace softgpu::driver
