// Memory for the objects of one type: equal slots in one reserved range of addresses.
//
// The whole range is reserved at once and made accessible piece by piece. So slots never move, and
// a process uses only the memory that it needs. The range is never unmapped. Threads: any; take()
// and give() lock a mutex, the other functions are lock-free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/mutex.h"

namespace rcuda::client {

class Slots {
 public:
  static constexpr size_t kMost = 4u << 20;  // slots

  explicit Slots(size_t slot_bytes);

  // Returns a free slot, or null if all are taken or no memory is left. A slot that take() returns
  // for the first time is filled with zeros.
  void* take();
  void give(void* slot);

  // All slots that take() has returned so far: used() slots from base() on.
  std::byte* base() const { return base_; }
  size_t used() const { return used_.load(std::memory_order_acquire); }

  // Whether the address lies in the reserved range.
  bool contains(const void* address) const {
    return base_ && reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base_) <
                        kMost * slot_bytes_;
  }

  // Returns a number that no object of any type has had; the first is 1.
  static uint64_t next_serial();

 private:
  const size_t slot_bytes_;
  std::byte* base_ = nullptr;  // null if the range could not be reserved
  Mutex mutex_;
  size_t usable_bytes_ RCUDA_GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> used_{0};
  std::vector<void*> free_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
