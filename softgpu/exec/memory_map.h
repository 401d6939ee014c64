// Which addresses a kernel may touch: a set of disjoint ranges, each with access rights.
//
// One MemoryMap per device context; the driver adds and removes ranges as memory is allocated,
// mapped, registered or opened, and the interpreter asks for every global access. Lookups are
// lock-free for readers through a per-thread cache of the last range, which a generation counter
// invalidates; add() and remove() take a mutex and may come from any thread, also while grids run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

namespace softgpu::exec {

enum class Access : uint8_t { kRead = 1, kReadWrite = 3 };

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;  // one past the last byte
  Access access = Access::kReadWrite;
};

class MemoryMap {
 public:
  // False when the range is empty or overlaps one that is there.
  bool add(uint64_t begin, size_t bytes, Access access = Access::kReadWrite);
  // Removes the range that begins there; false if none does.
  bool remove(uint64_t begin);
  bool set_access(uint64_t begin, Access access);

  // The range that holds address, or an empty one.
  Range find(uint64_t address) const;
  // Changes with every add, remove and set_access; a cached Range is valid while it stays the same.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Range> ranges_;  // by begin
  std::atomic<uint64_t> generation_{1};
};

}  // namespace softgpu::exec
