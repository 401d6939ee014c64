// LentMemory: the memory that was passed to Link::lend(), for a Link with Reconnecting.
//
// Any thread. Nothing blocks, except remove(), for microseconds (ExposedRegions::Pin).
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/transport/tcp/exposed_regions.h"

namespace rcuda::transport {

class LentMemory {
 public:
  using Entry = ExposedRegions::Entry;

  void add(const void* base, size_t bytes) {
    auto entry = std::make_shared<Entry>();
    entry->base = static_cast<std::byte*>(const_cast<void*>(base));
    entry->bytes = bytes;
    MutexLock lock(mutex_);
    entries_.emplace(base, std::move(entry));
  }
  // Removes the entry of an add() with the same arguments. After the return, no thread reads the
  // memory through it.
  void remove(const void* base, size_t bytes) {
    std::shared_ptr<Entry> entry;
    {
      MutexLock lock(mutex_);
      const auto [first, last] = entries_.equal_range(base);
      const auto found =
          std::find_if(first, last, [&](const auto& one) { return one.second->bytes == bytes; });
      if (found == last) return;
      entry = std::move(entries_.extract(found).mapped());
    }
    ExposedRegions::retire(*entry);
  }
  // Returns the lent memory that contains all of these bytes, or null. May also return null if many
  // overlapping parts were lent.
  std::shared_ptr<Entry> find(const std::byte* begin, size_t bytes) {
    constexpr int kTries = 4;
    MutexLock lock(mutex_);
    auto at = entries_.upper_bound(begin);
    for (int i = 0; i < kTries && at != entries_.begin(); ++i) {
      const Entry& entry = *(--at)->second;
      if (begin + bytes <= entry.base + entry.bytes) return at->second;
    }
    return nullptr;
  }

 private:
  Mutex mutex_;
  std::multimap<const void*, std::shared_ptr<Entry>> entries_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::transport
