// LinkCore: what every medium has in common: the status that ends a Link, sleeping, counters.
//
// A medium derives from it, stores data first and then calls notify(). fail() may be called from
// any thread, any number of times: the first status stays, is logged unless the end was intended,
// wakes every waiter, and calls on_broken() once so that the medium releases its own blocked
// threads.
#pragma once

#include <atomic>
#include <mutex>

#include "common/transport/doorbell.h"
#include "common/transport/link.h"

namespace rcuda::transport {

inline constexpr size_t kMaxWindowBytes = 1u << 30;

// Validates what both sides' users and peers may say about a window.
Status check_window_bytes(uint64_t bytes, const char* whose);

// How often to give a sign of life to a peer that gives up after `timeout_ms` (zero: never). The
// timeout is the peer's claim, so there is a least interval.
std::chrono::milliseconds heartbeat_interval(uint32_t timeout_ms);

class LinkCore : public Link {
 public:
  Status wait(const std::function<bool()>& ready,
              std::chrono::steady_clock::time_point deadline) final;
  void interrupt() final { doorbell_.ring_always(); }
  Status status() const final;
  LinkCounters counters() const final;
  void on_immediate(ImmediateArrived arrived) final;
  // What only verbs has.
  Result<Region> expose_device(void* base, size_t bytes, const DeviceMemory& memory) override;
  Status loop_back(void* to, const void* from, size_t bytes) override;

 protected:
  enum class End { kIntended, kLost };

  LinkCore(DoorbellState* doorbell, bool shared) : doorbell_(doorbell, shared) {}

  bool broken() const { return broken_.load(std::memory_order_acquire); }
  void fail(End end, const std::string& why);
  // The medium's threads blocked in system calls must return soon after this.
  virtual void on_broken() = 0;
  // Runs before a thread sleeps in wait(), each time: a medium that batches sends what it holds
  // back; verbs asks the peer for a wake-up.
  virtual void before_sleep() {}

  // So many bytes of a write with that immediate have come.
  void immediate_arrived(uint32_t immediate, uint64_t bytes);

  // Refuses what put() may not be given.
  Status check_put(uint64_t offset, size_t pieces, size_t total, size_t peer_window_bytes) const;
  // Adds to a counter that only the holder of the put lock writes: no locked instruction.
  static void bump(std::atomic<uint64_t>& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  void count_put(size_t total) {
    bump(puts_, 1);
    bump(window_bytes_, total);
  }

  Doorbell doorbell_;  // of this side's window

  std::atomic<uint64_t> puts_{0};
  std::atomic<uint64_t> wakes_{0};
  std::atomic<uint64_t> window_bytes_{0};
  std::atomic<uint64_t> work_requests_{0};
  std::atomic<uint64_t> doorbells_{0};
  std::atomic<uint64_t> completions_{0};
  std::atomic<uint64_t> receives_{0};
  std::atomic<uint64_t> arms_{0};
  std::atomic<uint64_t> arm_answers_{0};
  std::atomic<uint64_t> transfer_bytes_{0};
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<uint64_t> registrations_{0};

 private:
  std::atomic<bool> broken_{false};
  mutable std::mutex status_mutex_;
  Status status_;  // guarded by status_mutex_; set before broken_
  std::mutex immediate_mutex_;
  ImmediateArrived on_immediate_;  // guarded by immediate_mutex_
};

}  // namespace rcuda::transport
