#include "client/objects/slots.h"

#include <algorithm>

#include <sys/mman.h>

#include "common/base/leak_check.h"

namespace rcuda::client {
namespace {

constexpr size_t kPieceBytes = 1u << 20;

}  // namespace

// Reserves the range with PROT_NONE: no overcommit policy counts a range without access as memory.
Slots::Slots(size_t slot_bytes) : slot_bytes_(slot_bytes) {
  void* memory = mmap(nullptr, kMost * slot_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(memory);
  look_for_pointers_in(base_, kMost * slot_bytes);
}

void* Slots::take() {
  MutexLock lock(mutex_);
  if (!free_.empty()) {
    void* slot = free_.back();
    free_.pop_back();
    return slot;
  }
  const size_t index = used_.load(std::memory_order_relaxed);
  if (!base_ || index == kMost) return nullptr;
  if ((index + 1) * slot_bytes_ > usable_bytes_) {
    const size_t more = std::min(kPieceBytes, kMost * slot_bytes_ - usable_bytes_);
    if (mprotect(base_ + usable_bytes_, more, PROT_READ | PROT_WRITE) != 0) return nullptr;
    usable_bytes_ += more;
  }
  used_.store(index + 1, std::memory_order_release);
  return base_ + index * slot_bytes_;
}

void Slots::give(void* slot) {
  MutexLock lock(mutex_);
  free_.push_back(slot);
}

uint64_t Slots::next_serial() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace rcuda::client
