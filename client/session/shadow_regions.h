// ShadowRegions: the regions of a worker's shadows of this process's page-locked memory. The client
// writes the bytes of a copy into a shadow, so the worker need not request them.
//
// Used only over media whose threads copy the bytes (copies_by_cpu). The worker's reply to
// HostExpose names the region. Threads: any. Blocking: remove(). Errors: none; after a lost Link,
// the session's next call returns the error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "common/base/mutex.h"
#include "common/transport/link.h"

namespace rcuda::client {

class ShadowRegions {
 public:
  // Limits the bytes in flight, because the data of other senders must wait for them. Beyond the
  // limit, the worker reads the source of a copy itself, in small parts.
  static constexpr uint64_t kMostBytes = 32u << 20;

  // Adds the region of the shadow of [address, address + bytes). Does nothing for RegionId::kNone.
  void add(transport::Link& link, uint64_t address, uint64_t bytes, transport::RegionId region);
  // Removes the region of the shadow that begins at `address`. Blocks until no send() or
  // send_later() reads the memory.
  void remove(transport::Link& link, uint64_t address);

  // Begins to write the memory into its shadow, in parts (wire::parts_of()). The memory must not
  // change until the worker has all of it. `company`: transport::Company::kAwaited or kAlone.
  // Returns the immediate of the first part. Returns 0 and sends nothing if the memory does not lie
  // in one shadow, or if more than kMostBytes would be in flight.
  uint32_t send(transport::Link& link, uint64_t address, uint64_t bytes,
                transport::Company company);
  // Like send(), but the write begins when the caller calls `begin`, which it must do exactly once.
  // If `immediate` is 0, nothing is written, and `begin` is empty.
  struct Later {
    uint32_t immediate = 0;
    std::function<void()> begin;
  };
  Later send_later(transport::Link& link, uint64_t address, uint64_t bytes,
                   transport::Company company);
  // Reserves `count` consecutive immediates (wire::immediate_of()). Returns the first.
  uint32_t take_immediates(uint64_t count);

 private:
  struct Shadow {
    uint64_t bytes = 0;
    transport::RegionId region{};
    std::atomic<uint32_t> writes{0};  // in progress
  };
  // A write whose bytes and immediates are reserved.
  struct Reserved {
    std::shared_ptr<Shadow> shadow;  // null: no write
    uint64_t base = 0, address = 0, bytes = 0;
    uint32_t first = 0;  // the first of the immediates
  };
  Reserved reserve(uint64_t address, uint64_t bytes);
  void write(transport::Link& link, const Reserved& reserved, transport::Company company);
  // Returns null if the range does not lie in one shadow.
  std::shared_ptr<Shadow> begin_writes(uint64_t address, uint64_t bytes, uint64_t* base);

  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Shadow>> shadows_ RCUDA_GUARDED_BY(mutex_);  // by address
  std::atomic<uint64_t> sending_{0};                                              // bytes
  std::atomic<uint64_t> next_{0};
};

}  // namespace rcuda::client
