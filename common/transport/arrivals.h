// Arrivals: matches the peer's writes with immediates to the callbacks that wait for them
// (Link::write_with_immediate()).
//
// A write and the message that names it may use different sockets, so either may arrive first.
//
// Threads: any. Nothing blocks. Errors go to the callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::transport {

class Arrivals {
 public:
  // Called once, when the bytes have arrived or will not arrive, on a thread of the Link or on the
  // calling thread. Must not block.
  using Ended = std::function<void(const Status&)>;

  // The most writes that may arrive before the messages that name them. A peer that exceeds this
  // number is misbehaving: all waits for further writes fail, now and later.
  static constexpr size_t kMostEarly = 128u << 10;

  // `bytes` more of the write with this immediate have arrived (Link::on_immediate()).
  void arrived(uint32_t immediate, uint64_t bytes);
  // A message of the peer names a write of `bytes` with this immediate into the region.
  void expect(uint32_t immediate, RegionId region, uint64_t bytes, Ended ended);
  // Returns the number of writes that a message has named and that have not arrived.
  size_t expected();
  // The region is withdrawn: fails the waits for writes into the region. The Link drops later
  // writes into it.
  void withdraw(RegionId region);
  // No further write arrives: fails all waits.
  void end();

 private:
  struct Write {
    uint64_t arrived = 0;
    uint64_t expected = 0;  // 0: no message has named the write
    RegionId region = RegionId::kNone;
    Ended ended;
    bool is_whole() const { return expected != 0 && arrived >= expected; }
  };

  template <typename Matches>
  std::vector<Ended> take_locked(const Matches& matches) RCUDA_REQUIRES(mutex_);

  Mutex mutex_;  // not held in calls of Ended
  std::unordered_map<uint32_t, Write> writes_ RCUDA_GUARDED_BY(mutex_);  // by immediate
  size_t early_ RCUDA_GUARDED_BY(mutex_) = 0;  // writes that no message has named
  Status over_ RCUDA_GUARDED_BY(mutex_);       // why further waits fail
};

}  // namespace rcuda::transport
