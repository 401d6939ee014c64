// The addresses that a kernel may touch: a set of disjoint ranges, each with access rights.
//
// Each device has one MemoryMap. The driver adds and removes ranges when memory is allocated,
// mapped, registered or opened. The interpreter looks up every global access: usually without a
// lock, in its block's cache of ranges (memory.h), which the generation counter invalidates. Any
// thread may call every function, also while grids run; a shared mutex guards the ranges.
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
  // False if the range is empty or overlaps an existing one.
  bool add(uint64_t begin, size_t bytes, Access access = Access::kReadWrite);
  // Removes the range that begins at `begin`. False if no range begins there.
  bool remove(uint64_t begin);
  bool set_access(uint64_t begin, Access access);

  // The range that contains `address`, or an empty range.
  Range find(uint64_t address) const;
  // Changes with every add, remove and set_access. A cached Range is valid while the generation is
  // unchanged.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Range> ranges_;  // by begin
  std::atomic<uint64_t> generation_{1};
};

}  // namespace softgpu::exec
