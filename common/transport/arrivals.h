// Arrivals: who waits for which of the peer's writes with immediates
// (Link::write_with_immediate()).
//
// They may travel on other sockets than the message that names them, so either may come first.
//
// Threads: any. Nothing blocks. Errors: given to who expects the bytes.
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
  // Called once: the bytes are here, or will not come. On a thread of the Link, or on that of the
  // call that made it so. Must not block.
  using Ended = std::function<void(const Status&)>;

  // So many writes may come before the messages that name them. A peer that goes beyond has lost
  // the way: nothing more is waited for.
  static constexpr size_t kMostEarly = 128u << 10;

  // `bytes` more of the write with this immediate are here (Link::on_immediate()).
  void arrived(uint32_t immediate, uint64_t bytes);
  // The peer writes `bytes` with this immediate into the region, or has done so.
  void expect(uint32_t immediate, RegionId region, uint64_t bytes, Ended ended);
  // What is expected in the region will not come: writes into it are dropped from now on.
  void withdraw(RegionId region);
  // Nothing comes any more.
  void end();

 private:
  struct Write {
    uint64_t arrived = 0;
    uint64_t expected = 0;  // 0: no message has named it
    RegionId region = RegionId::kNone;
    Ended ended;
    bool is_whole() const { return expected != 0 && arrived >= expected; }
  };

  template <typename Matches>
  std::vector<Ended> take_locked(const Matches& matches) RCUDA_REQUIRES(mutex_);

  Mutex mutex_;  //; not held in calls of Ended
  std::unordered_map<uint32_t, Write> writes_ RCUDA_GUARDED_BY(mutex_);  // by immediate
  size_t early_ RCUDA_GUARDED_BY(mutex_) = 0;  // those that no message has named
  Status over_ RCUDA_GUARDED_BY(mutex_);       // why nothing is waited for
};

}  // namespace rcuda::transport
