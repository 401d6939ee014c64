// The order between the sockets of a TCP Link: puts come by the control socket, and transfers by
// others, in pieces. A transfer waits for the puts into regions that were sent before it, and the
// puts behind a write in order (Link::write_in_order()) wait for the write. SentOrder counts what
// this side sends, SocketOrder what it receives. Whoever waits, waits only for what was sent
// before, and a write in order overtakes what waits for answers. So nobody waits for ever. A broken
// Link ends all waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "common/base/mutex.h"
#include "common/transport/link.h"

namespace rcuda::transport {

// For one thread at a time. It counts puts into regions and ends of writes in order together.
// Counts and numbers start again after 2^32.
class SentOrder {
 public:
  // Another put into a region. Returns how many have been sent.
  uint32_t add_put();
  // Of another write in order, into [begin, end) of the region.
  struct Write {
    uint32_t number;      // not 0
    uint32_t after_puts;  // its bytes wait for so many
    uint32_t sent;        // with its end
  };
  Write add_write(RegionId region, uint64_t begin, uint64_t end);

 private:
  // The bytes of a write wait for those of an earlier one only if both go to the same place. What
  // is behind so many others is forgotten: all later ones wait for it, which has long arrived.
  static constexpr size_t kRecent = 32;
  struct Recent {
    RegionId region;
    uint64_t begin, end;
    uint32_t sent;
  };
  std::deque<Recent> recent_;  // since the last put
  uint32_t sent_ = 0;
  uint32_t all_wait_ = 0;  // for so many
  uint32_t number_ = 0;
};

// Any thread.
class SocketOrder {
 public:
  using Clock = std::chrono::steady_clock;
  // A peer with more writes whose ends it has not told has lost the way.
  static constexpr size_t kMostWrites = 4096;

  // A put into a region has come, or the end of a write in order.
  void count_put();
  // Blocks until that many have come. Returns false after stop_waiting().
  bool wait_for_puts(uint32_t count);

  // A piece of the write in order with this number has come. False: there are too many.
  bool count_piece(uint32_t number, uint64_t bytes);
  // Blocks until so many bytes of the write have come. False: not until then, or stop_waiting().
  // It polls for `spin` before it sleeps. The write is forgotten once it is here.
  bool wait_for_write(uint32_t number, uint64_t bytes, std::chrono::nanoseconds spin,
                      Clock::time_point until);
  void stop_waiting();

  // Bytes that have come by the sockets of transfers. For whoever waits: does the peer still send?
  void note_bytes(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Orders the puts and transfers of the connection for ThreadSanitizer: see peer_order.h.
  const void* for_sanitizer() const { return &for_sanitizer_; }

 private:
  bool take_locked(uint32_t number, uint64_t bytes) RCUDA_REQUIRES(mutex_);

  const char for_sanitizer_ = 0;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint32_t> puts_{0};    // raised with mutex_ held
  std::atomic<uint32_t> pieces_{0};  // the same
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  CondVar came_;
  std::unordered_map<uint32_t, uint64_t> writes_ RCUDA_GUARDED_BY(mutex_);  // bytes by number
};

}  // namespace rcuda::transport
