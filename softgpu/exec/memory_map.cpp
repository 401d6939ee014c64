#include "softgpu/exec/memory_map.h"

#include <iterator>
#include <mutex>

namespace softgpu::exec {

bool MemoryMap::add(uint64_t begin, size_t bytes, Access access) {
  const uint64_t end = begin + bytes;
  if (bytes == 0 || end < begin) return false;
  std::unique_lock lock(mutex_);
  const auto next = ranges_.lower_bound(begin);
  if (next != ranges_.end() && next->first < end) return false;
  if (next != ranges_.begin() && std::prev(next)->second.end > begin) return false;
  ranges_.emplace_hint(next, begin, Range{begin, end, access});
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

bool MemoryMap::remove(uint64_t begin) {
  std::unique_lock lock(mutex_);
  if (ranges_.erase(begin) == 0) return false;
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

bool MemoryMap::set_access(uint64_t begin, Access access) {
  std::unique_lock lock(mutex_);
  const auto range = ranges_.find(begin);
  if (range == ranges_.end()) return false;
  range->second.access = access;
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

Range MemoryMap::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return {};
  const Range& range = std::prev(after)->second;
  return address < range.end ? range : Range{};
}

}  // namespace softgpu::exec
