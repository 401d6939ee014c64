// The order between the sockets of a TCP Link: puts use the control socket, and transfers use other
// sockets, in pieces. A transfer waits for the puts into regions that were sent before it, and puts
// after a write in order (Link::write_in_order()) wait for the write. SentOrder counts the messages
// that this side sends, SocketOrder the messages that it receives. Every wait is for messages sent
// earlier, and a write in order never waits in a queue for the answers to other requests
// (bulk_stream.h), so there is no deadlock. A broken Link ends all waits.
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

// One thread at a time may use this object. One count covers puts into regions and ends of writes
// in order. Counts and numbers wrap at 2^32.
class SentOrder {
 public:
  // Counts another put into a region. Returns the new count.
  uint32_t add_put();
  struct Write {
    uint32_t number;      // not 0
    uint32_t after_puts;  // the bytes of the write wait for this count
    uint32_t sent;        // the count that includes the end of the write
  };
  // Counts another write in order, into [begin, end) of the region.
  Write add_write(RegionId region, uint64_t begin, uint64_t end);

 private:
  // The last kRecent writes are recorded. A write waits for a recorded write only if both write to
  // the same bytes. It waits for all earlier writes that are not recorded any more; these have
  // usually arrived.
  static constexpr size_t kRecent = 32;
  struct Recent {
    RegionId region;
    uint64_t begin, end;
    uint32_t sent;
  };
  std::deque<Recent> recent_;  // since the last put
  uint32_t sent_ = 0;
  uint32_t all_wait_ = 0;  // every write waits for this count
  uint32_t number_ = 0;
};

// Any thread.
class SocketOrder {
 public:
  using Clock = std::chrono::steady_clock;
  // The most writes whose kEndOfWrite has not been processed. A peer that exceeds this breaks the
  // Link.
  static constexpr size_t kMostWrites = 4096;

  // A put into a region, or the end of a write in order, has arrived.
  void count_put();
  // Blocks until the count is reached. Returns false after stop_waiting().
  bool wait_for_puts(uint32_t count);

  // A piece of the write in order with this number has arrived. Returns false if kMostWrites other
  // writes are unfinished.
  bool count_piece(uint32_t number, uint64_t bytes);
  // Blocks until `bytes` of the write have arrived, then forgets the write. Returns false at
  // `until`, and after stop_waiting(). Polls for `spin` before it sleeps.
  bool wait_for_write(uint32_t number, uint64_t bytes, std::chrono::nanoseconds spin,
                      Clock::time_point until);
  void stop_waiting();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // Counts bytes that have arrived over the sockets of transfers. If the count grows, a thread that
  // waits for the peer knows that the peer still sends.
  void note_bytes(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Orders the puts and transfers of the connection for ThreadSanitizer: see peer_order.h.
  const void* for_sanitizer() const { return &for_sanitizer_; }

 private:
  bool take_locked(uint32_t number, uint64_t bytes) RCUDA_REQUIRES(mutex_);

  const char for_sanitizer_ = 0;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint32_t> puts_{0};    // raised with mutex_ held
  std::atomic<uint32_t> pieces_{0};  // raised with mutex_ held
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  CondVar came_;
  std::unordered_map<uint32_t, uint64_t> writes_ RCUDA_GUARDED_BY(mutex_);  // bytes by number
};

}  // namespace rcuda::transport
