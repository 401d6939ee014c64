// ShadowRegions: where a worker keeps its shadows of this process's page-locked memory, and how the
// bytes of a copy get there without being asked for.
//
// Only over media whose threads copy the bytes (copies_by_cpu): the worker says at HostExpose where
// they may be written. Threads: any. Blocking: remove(). Errors: none; a lost Link shows in the
// next call of the session.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/mutex.h"
#include "common/transport/link.h"

namespace rcuda::client {

class ShadowRegions {
 public:
  // What is sent waits in front of what others send, so no more may be on its way to the sockets.
  // The worker reads the source of further copies, a little at a time.
  static constexpr uint64_t kMostBytes = 32u << 20;

  void add(transport::Link& link, uint64_t address, uint64_t bytes, transport::RegionId region);
  // Blocks until nothing reads the memory any more to send it.
  void remove(transport::Link& link, uint64_t address);

  // Begins to write the memory into the worker's shadow of it, in parts (wire::parts_of()). The
  // memory must not change until the worker has all. `company`: kAwaited or kAlone. Returns the
  // immediate of the first part. 0: the memory does not lie in one shadow, or too much is being
  // sent; nothing is sent.
  uint32_t send(transport::Link& link, uint64_t address, uint64_t bytes,
                transport::Company company);
  // The first of so many immediates in a row (wire::immediate_of()), which nobody else gets.
  uint32_t take_immediates(uint64_t count);

 private:
  struct Shadow {
    uint64_t bytes = 0;
    transport::RegionId region{};
    std::atomic<uint32_t> writes{0};  // in progress
  };
  // Null if the range does not lie in one.
  std::shared_ptr<Shadow> begin_writes(uint64_t address, uint64_t bytes, uint64_t* base);

  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Shadow>> shadows_ RCUDA_GUARDED_BY(mutex_);  // by address
  std::atomic<uint64_t> sending_{0};                                              // bytes
  std::atomic<uint64_t> next_{0};
};

}  // namespace rcuda::client
