// Memory for the objects of one type: equal slots in one reserved range of addresses.
//
// The range is reserved whole and made usable piece by piece, so that slots never move and a
// process pays for what it uses. It is never unmapped. Threads: any; take() and give() take a
// mutex, the rest is lock-free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace rcuda::client {

class Slots {
 public:
  static constexpr size_t kMost = 4u << 20;  // slots

  explicit Slots(size_t slot_bytes);

  // A slot that nobody has, filled with zeros before its first use; null when all are taken.
  void* take();
  void give(void* slot);

  // Of what take() has ever returned: addresses from base() on, used() slots.
  std::byte* base() const { return base_; }
  size_t used() const { return used_.load(std::memory_order_acquire); }

  // Numbers that no slot of any type has had, from 1.
  static uint64_t next_serial();

 private:
  const size_t slot_bytes_;
  std::byte* base_ = nullptr;  // null when no addresses were left
  std::mutex mutex_;
  size_t usable_bytes_ = 0;
  std::atomic<size_t> used_{0};
  std::vector<void*> free_;
};

}  // namespace rcuda::client
