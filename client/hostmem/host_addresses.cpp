#include "client/hostmem/host_addresses.h"

#include <algorithm>
#include <iterator>

namespace rcuda::client {
namespace {

constexpr size_t kUnit = 64u << 10;
// Allocations of up to kMostQuietBytes get addresses whose lower 32 bits are between these limits,
// if such addresses are free. As an integer these bits are -0.94e9 to -0.13e9, as a float -1.3e5 to
// -1e34. host_addresses.h explains why such values are chosen.
constexpr uint64_t kQuietBegin = 0xc800'0000;
constexpr uint64_t kQuietEnd = 0xf800'0000;
static_assert(HostAddresses::kMostQuietBytes + kUnit <= kQuietEnd - kQuietBegin);
constexpr uint64_t k4GiB = 1ull << 32;

// Returns the size of an allocation with the guard after it.
size_t guarded(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit + kUnit; }

}  // namespace

std::optional<uint64_t> HostAddresses::lowest_quiet(size_t size) const {
  for (const auto& [begin, bytes] : free_) {
    for (uint64_t upper = begin / k4GiB * k4GiB; upper < begin + bytes; upper += k4GiB) {
      const uint64_t base = std::max(begin, upper + kQuietBegin);
      if (base + size <= std::min(begin + bytes, upper + kQuietEnd)) return base;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> HostAddresses::lowest(size_t size) const {
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [size](const auto& hole) { return hole.second >= size; });
  return found == free_.end() ? std::nullopt : std::optional(found->first);
}

void HostAddresses::cut(uint64_t base, size_t size) {
  const auto hole = std::prev(free_.upper_bound(base));
  const uint64_t begin = hole->first;
  const uint64_t end = begin + hole->second;
  free_.erase(hole);
  if (begin < base) free_[begin] = base - begin;
  if (base + size < end) free_[base + size] = end - (base + size);
}

uint64_t HostAddresses::take(size_t bytes) {
  if (bytes > wire::kHostRangeBytes) return 0;
  const size_t size = guarded(bytes);
  MutexLock lock(mutex_);
  std::optional<uint64_t> base;
  if (bytes <= kMostQuietBytes) base = lowest_quiet(size);
  if (!base) base = lowest(size);
  if (!base) return 0;
  cut(*base, size);
  return *base;
}

void HostAddresses::give_back(uint64_t base, size_t bytes) {
  size_t size = guarded(bytes);
  MutexLock lock(mutex_);
  auto next = free_.lower_bound(base);
  if (next != free_.end() && base + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == base) {
      before->second += size;
      return;
    }
  }
  free_[base] = size;
}

}  // namespace rcuda::client
