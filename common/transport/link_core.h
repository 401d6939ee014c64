// LinkCore implements what all media have in common: the status that ends a Link, the sleep in
// wait(), and the counters.
//
// A medium derives from LinkCore. doorbell_ wakes the threads of this side that wait for the peer's
// data. Each put that must wake them (Wake) rings doorbell_ after its bytes are in this side's
// window. Over shm the peer rings, otherwise this side's medium. A put outside of
// LinkOptions::answers also rings elsewhere_, if there is one.
//
// Any thread may call fail(), any number of times. The first status is kept, and logged unless the
// end was intended. fail() wakes every waiter and calls on_broken() once, so that the medium can
// release its own blocked threads.
#pragma once

#include <atomic>
#include <string>

#include "common/base/mutex.h"
#include "common/transport/doorbell.h"
#include "common/transport/link.h"

namespace rcuda::transport {

inline constexpr size_t kMaxWindowBytes = 1u << 30;

// Checks the size of a window, as given by a user on this side or by the peer.
Status check_window_bytes(uint64_t bytes, const char* whose);
// Checks memory that expose() receives.
Status check_region(const void* base, size_t bytes);
// The error of unexpose() for an id that names no region.
Status not_exposed(RegionId region);

// The interval of heartbeats for a peer whose timeout is `timeout_ms` (zero: no heartbeats). The
// timeout comes from the peer, so the interval has a lower limit.
std::chrono::milliseconds heartbeat_interval(uint32_t timeout_ms);

// Explains why a Link ended, on the side that was silent for longer than its peer's limit.
std::string given_up(uint64_t limit_ms);

// The counters of a Link that is in use. Any thread reads and changes them, in relaxed order.
using LiveCounters = CountersOf<std::atomic<uint64_t>>;

class LinkCore : public Link {
 public:
  Status wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline,
              WokenBy woken_by = WokenBy::kAny) final;
  void interrupt() final;
  Status status() const final;
  LinkCounters counters() const final;
  void on_immediate(ImmediateArrived arrived) final;
  void before_puts(std::function<void()> first) final { before_put_ = std::move(first); }
  // Both return kUnsupported. Verbs overrides them.
  Result<Region> expose_device(void* base, size_t bytes, const DeviceMemory& memory) override;
  Status loop_back(void* to, const void* from, size_t bytes) override;

 protected:
  enum class End { kIntended, kLost };

  // `elsewhere`: rung by puts outside of LinkOptions::answers. Null: answers are not distinguished.
  LinkCore(DoorbellState* doorbell, DoorbellState* elsewhere, bool shared)
      : doorbell_(doorbell, shared),
        elsewhere_(elsewhere, shared),
        separates_answers_(elsewhere != nullptr) {}

  bool broken() const { return broken_.load(std::memory_order_acquire); }
  void fail(End end, const std::string& why);
  // Must make the medium's threads return from blocking system calls soon.
  virtual void on_broken() = 0;
  // Called each time before a thread sleeps in wait(). tcp sends the gathered puts; verbs asks the
  // peer for a wake-up.
  virtual void before_sleep() {}

  // Each put and transfer of a medium with has_region_puts calls this first.
  void run_before_put() const {
    if (before_put_) before_put_();
  }
  // `bytes` more of a write with this immediate have arrived.
  void immediate_arrived(uint32_t immediate, uint64_t bytes);

  // Refuses arguments that put() does not allow.
  Status check_put(uint64_t offset, size_t pieces, size_t total, size_t peer_window_bytes) const;
  // Refuses arguments that put_region() does not allow.
  Status check_region_put(size_t bytes) const;
  // Adds to a counter without a locked instruction: only the holder of the put lock writes it.
  static void bump(std::atomic<uint64_t>& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  void count_put(size_t total) {
    bump(counters_.puts, 1);
    bump(counters_.window_bytes, total);
  }

  // Counts bytes of a transfer that this side's CPU has copied.
  void count_copied(uint64_t bytes) {
    counters_.transfer_bytes.fetch_add(bytes, std::memory_order_relaxed);
    counters_.copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  Doorbell doorbell_;   // rung by the peer's puts
  Doorbell elsewhere_;  // rung by the peer's puts outside of LinkOptions::answers
  const bool separates_answers_;

  LiveCounters counters_;

 private:
  std::atomic<bool> broken_{false};
  mutable Mutex status_mutex_;
  Status status_;  // guarded by status_mutex_; set before broken_
  std::function<void()> before_put_;
  Mutex immediate_mutex_;
  ImmediateArrived on_immediate_ RCUDA_GUARDED_BY(immediate_mutex_);
};

}  // namespace rcuda::transport
