// FaultLink: delays the operations of another Link, and may break it, as the contract of link.h
// allows.
//
// - put() waits only while kMaxQueuedPuts puts are queued. A thread delivers the puts in order,
//   after random delays like those of a busy network. Some puts also cause a spurious wake-up.
// - Transfers start after random delays and overtake each other.
// - After `break_after` operations the medium fails: `cut` breaks it.
//
// The drawn delays depend only on the seed and the order of calls. As for every Link, all functions
// may be called from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "common/transport/link.h"

namespace rcuda::test {

struct FaultPlan {
  uint64_t seed = 1;
  std::chrono::microseconds max_put_delay{200};
  std::chrono::microseconds max_transfer_delay{2000};
  double delayed_share = 0.1;                       // of puts and transfers
  double spurious_share = 0.02;                     // of puts that also call interrupt()
  uint64_t break_after = 0;                         // operations; 0: never
  std::function<void()> cut;                        // called once, by operation number break_after
  const transport::MediumTraits* traits = nullptr;  // of this Link; null: those of the inner Link
};

class FaultLink final : public transport::Link {
 public:
  FaultLink(std::unique_ptr<transport::Link> inner, FaultPlan plan);
  ~FaultLink() override;

  const transport::MediumTraits& traits() const override {
    return plan_.traits ? *plan_.traits : inner_->traits();
  }
  std::string adapter() const override { return inner_->adapter(); }
  std::span<std::byte> window() override { return inner_->window(); }
  size_t peer_window_bytes() const override { return inner_->peer_window_bytes(); }
  Status put(uint64_t offset, std::span<const transport::Bytes> pieces,
             transport::Wake wake) override;
  Status put_region(transport::RegionId region, uint64_t offset, transport::Bytes bytes) override;
  void flush() override { inner_->flush(); }
  void before_puts(std::function<void()> first) override { before_put_ = std::move(first); }
  Status wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline,
              transport::WokenBy woken_by) override;
  void interrupt() override { inner_->interrupt(); }
  Result<transport::Region> expose(void* base, size_t bytes, int backing,
                                   uint64_t backing_offset) override;
  Result<transport::Region> expose_device(void* base, size_t bytes,
                                          const transport::DeviceMemory& memory) override {
    return inner_->expose_device(base, bytes, memory);
  }
  Status loop_back(void* to, const void* from, size_t bytes) override {
    return inner_->loop_back(to, from, bytes);
  }
  Status unexpose(transport::RegionId region) override { return inner_->unexpose(region); }
  Result<void*> map(transport::RegionId region, size_t bytes, void* address) override;
  Status unmap(transport::RegionId region) override { return inner_->unmap(region); }
  void write(transport::RegionId region, uint64_t offset, const void* local, size_t bytes,
             transport::TransferDone done) override;
  void read(transport::RegionId region, uint64_t offset, void* local, size_t bytes,
            transport::TransferDone done) override;
  void write_with_immediate(transport::RegionId region, uint64_t offset, const void* local,
                            size_t bytes, uint32_t immediate, transport::Company company,
                            transport::TransferDone done) override;
  void write_in_order(transport::RegionId region, uint64_t offset, const void* local, size_t bytes,
                      transport::TransferDone done) override;
  void on_immediate(transport::ImmediateArrived arrived) override {
    inner_->on_immediate(std::move(arrived));
  }
  void announce_silence(bool silent) override { inner_->announce_silence(silent); }
  Status status() const override { return inner_->status(); }
  void close() override;
  transport::LinkCounters counters() const override { return inner_->counters(); }
  void abandon() noexcept override { inner_->abandon(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxQueuedPuts = 256;

  struct LatePut {
    uint64_t offset;
    std::vector<std::byte> bytes;
    transport::Wake wake;
    Clock::time_point due;
  };
  struct LateTransfer {
    std::function<void()> begin;
    Clock::time_point due;
  };

  std::chrono::microseconds draw_locked(std::chrono::microseconds most);
  bool count_operation_locked();  // true: the operation that breaks the medium
  void deliver();
  void begin_later(std::function<void()> begin);
  void begin_due(std::unique_lock<std::mutex>& lock);

  const std::unique_ptr<transport::Link> inner_;
  const FaultPlan plan_;
  std::function<void()> before_put_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::deque<LatePut> puts_;
  std::vector<LateTransfer> transfers_;
  uint64_t operations_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace rcuda::test
