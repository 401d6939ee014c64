// ExposedRegions: this side's regions on media where this side's own threads serve the peer (tcp).
//
// Any thread. A server thread touches region memory only while it holds a Pin, and holds one only
// across a system call that does not block; so remove() waits microseconds, and after it returned
// nothing touches the memory again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

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
      // Either this sees `retired`, or remove() sees the pin: both are sequentially consistent.
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
  Status remove(RegionId region);
  // What the peer asks for, checked: kNotFound, or kInvalidArgument outside of the region.
  Result<std::shared_ptr<Entry>> find(uint64_t id, uint64_t offset, uint64_t bytes);
  // What the connection's puts and transfers tell of one another: see peer_order.h.
  const void* peer_order() const { return &peer_order_; }

 private:
  const char peer_order_ = 0;
  std::mutex mutex_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> entries_;
};

}  // namespace rcuda::transport
