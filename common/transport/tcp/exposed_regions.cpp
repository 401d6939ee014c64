#include "common/transport/tcp/exposed_regions.h"

#include <thread>

namespace rcuda::transport {

Result<Region> ExposedRegions::add(void* base, size_t bytes) {
  if (base == nullptr || bytes == 0) return Status{Code::kInvalidArgument, "the region is empty"};
  auto entry = std::make_shared<Entry>();
  entry->base = static_cast<std::byte*>(base);
  entry->bytes = bytes;
  MutexLock lock(mutex_);
  const uint64_t id = next_++;
  entries_.emplace(id, std::move(entry));
  return Region{RegionId{id}, bytes};
}

Result<std::shared_ptr<ExposedRegions::Entry>> ExposedRegions::remove(RegionId region) {
  std::shared_ptr<Entry> entry;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(static_cast<uint64_t>(region));
    if (found == entries_.end()) return Status(Code::kNotFound, "no such region is exposed");
    entry = std::move(found->second);
    entries_.erase(found);
  }
  retire(*entry);
  return entry;
}

void ExposedRegions::retire(Entry& entry) {
  entry.retired.store(true);
  while (entry.pins.load() != 0) std::this_thread::yield();
}

Result<std::shared_ptr<ExposedRegions::Entry>> ExposedRegions::find(uint64_t id, uint64_t offset,
                                                                    uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return Status{Code::kNotFound, "region " + std::to_string(id) + " does not exist"};
  }
  if (bytes > found->second->bytes || offset > found->second->bytes - bytes) {
    return Status{Code::kInvalidArgument, "transfer outside of region " + std::to_string(id)};
  }
  return found->second;
}

}  // namespace rcuda::transport
