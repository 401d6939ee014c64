// ExposedRegions: the regions that this side exposes, for media whose own threads serve the peer
// (tcp).
//
// Any thread may call. A thread of the Link touches region memory only while it holds a Pin, and
// holds a Pin only for one system call that does not block, or for one copy of at most
// kMaxRegionPut bytes. So remove() waits for microseconds at most, and after it returns no thread
// touches the memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::transport {

class ExposedRegions {
 public:
  struct Entry {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    std::atomic<uint32_t> pins{0};
    std::atomic<bool> retired{false};
  };

  class Pin {
   public:
    explicit Pin(Entry& entry) : entry_(entry) {
      // Either this load sees `retired`, or retire() sees the pin: all these operations are
      // sequentially consistent.
      entry_.pins.fetch_add(1);
      valid_ = !entry_.retired.load();
    }
    ~Pin() { entry_.pins.fetch_sub(1); }
    Pin(const Pin&) = delete;
    explicit operator bool() const { return valid_; }

   private:
    Entry& entry_;
    bool valid_ = false;
  };

  Result<Region> add(void* base, size_t bytes);
  // Returns the region, which no thread of the Link touches any more.
  Result<std::shared_ptr<Entry>> remove(RegionId region);
  // Returns when the entry has no valid Pin, and no further Pin can become valid.
  static void retire(Entry& entry);
  // Checks a request of the peer. kNotFound: there is no such region; kInvalidArgument: the bytes
  // are outside of the region.
  Result<std::shared_ptr<Entry>> find(uint64_t id, uint64_t offset, uint64_t bytes);

 private:
  Mutex mutex_;
  uint64_t next_ RCUDA_GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> entries_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::transport
