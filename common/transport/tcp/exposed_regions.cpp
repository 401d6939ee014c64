#include "common/transport/tcp/exposed_regions.h"

#include <thread>

#include "common/transport/link_core.h"

namespace rcuda::transport {

Result<Region> ExposedRegions::add(void* base, size_t bytes) {
  RCUDA_RETURN_IF_ERROR(check_region(base, bytes));
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
    if (found == entries_.end()) return not_exposed(region);
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
    return Status{Code::kNotFound, "region " + std::to_string(id) + " is withdrawn or unknown"};
  }
  if (bytes > found->second->bytes || offset > found->second->bytes - bytes) {
    return Status{Code::kInvalidArgument, "the peer accessed " + std::to_string(bytes) +
                                              " bytes at offset " + std::to_string(offset) +
                                              " of region " + std::to_string(id) + ", which has " +
                                              std::to_string(found->second->bytes) + " bytes"};
  }
  return found->second;
}

}  // namespace rcuda::transport
