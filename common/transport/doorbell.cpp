#include "common/transport/doorbell.h"

#include <climits>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace rcuda::transport {
namespace {

// Sleeps while `word` equals `expected`. The deadline is absolute; steady_clock is CLOCK_MONOTONIC,
// the clock of FUTEX_WAIT_BITSET. May return early; the caller checks again.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, bool shared,
                Doorbell::Clock::time_point deadline) {
  timespec until{};
  timespec* timeout = nullptr;
  if (deadline != Doorbell::Clock::time_point::max()) {
    const auto ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
    until.tv_sec = ns > 0 ? ns / 1'000'000'000 : 0;
    until.tv_nsec = ns > 0 ? ns % 1'000'000'000 : 0;
    timeout = &until;
  }
  const int operation = FUTEX_WAIT_BITSET | (shared ? 0 : FUTEX_PRIVATE_FLAG);
  ::syscall(SYS_futex, &word, operation, expected, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

bool Doorbell::sleep(const std::function<bool()>& ready, Clock::time_point deadline) {
  if (ready()) return true;
  state_->sleepers.fetch_add(1, std::memory_order_acq_rel);  // S1
  bool is_ready = false;
  while (true) {
    const uint32_t sequence = state_->sequence.load(std::memory_order_acquire);
    is_ready = ready();  // S2
    if (is_ready || Clock::now() >= deadline) break;
    futex_wait(state_->sequence, sequence, shared_, deadline);
  }
  state_->sleepers.fetch_sub(1, std::memory_order_relaxed);
  return is_ready;
}

void Doorbell::ring_always() {
  state_->sequence.fetch_add(1, std::memory_order_release);
  const int operation = FUTEX_WAKE | (shared_ ? 0 : FUTEX_PRIVATE_FLAG);
  ::syscall(SYS_futex, &state_->sequence, operation, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rcuda::transport
