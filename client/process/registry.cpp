#include "client/process/registry.h"

#include <algorithm>
#include <utility>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

bool is_host(Placement placement) {
  return placement == Placement::kHost || placement == Placement::kRegistered ||
         placement == Placement::kManaged;
}

}  // namespace

bool Registry::add(Allocation allocation) {
  WriterLock lock(mutex_);
  if (allocation.session && !is_granted(allocation.base, allocation.bytes, allocation.session)) {
    return false;
  }
  forget_stale(allocation);
  auto next = allocations_.lower_bound(allocation.base);
  if (next != allocations_.end() && next->first < allocation.base + allocation.bytes) return false;
  if (next != allocations_.begin()) {
    const Allocation& before = std::prev(next)->second;
    if (before.base + before.bytes > allocation.base) return false;
  }
  // Memory that is added again because its release was refused keeps its id.
  if (allocation.buffer_id == 0) allocation.buffer_id = next_buffer_id_++;
  if (allocation.of_graph) any_of_graph_.store(true, std::memory_order_relaxed);
  const uint64_t base = allocation.base;
  allocations_.emplace_hint(next, base, std::move(allocation));
  return true;
}

void Registry::forget_stale(const Allocation& allocation) {
  auto it = allocations_.upper_bound(allocation.base);
  if (it != allocations_.begin()) --it;
  while (it != allocations_.end() && it->first < allocation.base + allocation.bytes) {
    const bool goes_unannounced = it->second.placement == Placement::kGlobal ||
                                  it->second.placement == Placement::kDeviceAsync;
    // A worker reuses only its own addresses, so an entry of another session is not stale.
    const bool of_another = allocation.session && it->second.session != allocation.session;
    const bool stale =
        goes_unannounced && !of_another && it->first + it->second.bytes > allocation.base;
    it = stale ? allocations_.erase(it) : std::next(it);
  }
}

std::optional<Allocation> Registry::find(uint64_t address) const {
  ReaderLock lock(mutex_);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return std::nullopt;
  const Allocation& candidate = std::prev(next)->second;
  if (address >= candidate.base + candidate.bytes) return std::nullopt;
  return candidate;
}

bool Registry::reserve(uint64_t base, size_t bytes, Session* session) {
  WriterLock lock(mutex_);
  if (!is_granted(base, bytes, session)) return false;
  reservations_[base] = {bytes, session};
  return true;
}

void Registry::grant(const AddressWindows& windows, const Session* session) {
  WriterLock lock(mutex_);
  grants_.push_back({&windows, session});
}

bool Registry::is_granted(uint64_t base, size_t bytes, const Session* session) const {
  return std::any_of(grants_.begin(), grants_.end(), [&](const Grant& grant) {
    return grant.session == session && grant.windows->owns(base, bytes);
  });
}

std::optional<Registry::Reserved> Registry::unreserve(uint64_t base) {
  WriterLock lock(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end()) return std::nullopt;
  const Reserved reserved{base, found->second.bytes, found->second.session};
  reservations_.erase(found);
  return reserved;
}

std::optional<Registry::Reserved> Registry::reservation(uint64_t address) const {
  ReaderLock lock(mutex_);
  const auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return std::nullopt;
  const auto& [base, found] = *std::prev(next);
  if (address - base >= found.bytes) return std::nullopt;
  return Reserved{base, found.bytes, found.session};
}

std::optional<Allocation> Registry::remove(uint64_t base) {
  WriterLock lock(mutex_);
  auto found = allocations_.find(base);
  if (found == allocations_.end()) return std::nullopt;
  Allocation allocation = std::move(found->second);
  allocations_.erase(found);
  return allocation;
}

bool Registry::overlaps(uint64_t address, size_t bytes) const {
  ReaderLock lock(mutex_);
  auto next = allocations_.lower_bound(address);
  if (next != allocations_.end() && next->first < address + bytes) return true;
  if (next == allocations_.begin()) return false;
  const Allocation& before = std::prev(next)->second;
  return before.base + before.bytes > address;
}

std::vector<Allocation> Registry::remove_context(uint32_t device, wire::ObjectId context) {
  std::vector<Allocation> host;
  WriterLock lock(mutex_);
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    const Allocation& allocation = it->second;
    const bool stays = allocation.placement == Placement::kDeviceAsync ||
                       (allocation.placement == Placement::kMapped && allocation.openings == 0);
    if (allocation.device != device || allocation.context != context || stays) {
      ++it;
      continue;
    }
    if (is_host(allocation.placement)) host.push_back(std::move(it->second));
    it = allocations_.erase(it);
  }
  return host;
}

}  // namespace rcuda::client
