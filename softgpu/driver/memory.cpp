#include "softgpu/driver/memory.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include <sys/mman.h>

#include "common/base/log.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/pools.h"

namespace softgpu::driver {

struct MemoryRegistry::Implementation {
  mutable std::shared_mutex mutex;
  std::map<uint64_t, std::shared_ptr<Allocation>> by_address;

  std::shared_ptr<Allocation> find(uint64_t address) const {
    auto it = by_address.upper_bound(address);
    if (it == by_address.begin()) return nullptr;
    --it;
    return address < it->second->end() ? it->second : nullptr;
  }
};

namespace {

uint32_t bit(const Device& device) { return 1u << device.ordinal(); }
uint32_t all_devices() { return (1u << device_count()) - 1; }

// Computes which devices' kernels may touch the allocation.
void compute_access(Allocation& a) {
  switch (a.kind) {
    case MemoryKind::kHost:
    case MemoryKind::kManaged:
      a.readable = a.writable = all_devices();
      break;
    case MemoryKind::kRegistered:
      a.readable = all_devices();
      a.writable = a.flags & CU_MEMHOSTREGISTER_READ_ONLY ? 0 : all_devices();
      break;
    case MemoryKind::kDevice:
    case MemoryKind::kModule:
    case MemoryKind::kHeap:
      a.readable = a.writable = bit(*a.device) | a.owner->peer_devices();
      break;
    case MemoryKind::kImported:
      if (!a.pool) {
        a.readable = a.writable = bit(*a.device) | bit(a.owner->device()) | a.owner->peer_devices();
        break;
      }
      [[fallthrough]];
    case MemoryKind::kPool:
      a.readable = a.pool->readable_devices();
      a.writable = a.pool->writable_devices();
      break;
    case MemoryKind::kGraph:
    case MemoryKind::kMapped:
      break;  // set_access() sets them
  }
}

void publish(Allocation& a, uint32_t readable, uint32_t writable) {
  for (int i = 0; i < device_count(); ++i) {
    const uint32_t mask = 1u << i;
    const bool had = a.published_readable & mask, has = readable & mask;
    const auto access = writable & mask ? exec::Access::kReadWrite : exec::Access::kRead;
    Device* device = device_at(i);
    if (!device) continue;
    if (has && !had) {
      device->memory().add(a.address, a.bytes, access);
    } else if (had && !has) {
      device->memory().remove(a.address);
    } else if (has && ((a.published_writable ^ writable) & mask)) {
      device->memory().set_access(a.address, access);
    }
  }
  a.published_readable = readable;
  a.published_writable = writable;
}

}  // namespace

bool Allocation::readable_by(const Device& by) const {
  return readable.load(std::memory_order_relaxed) & bit(by);
}

bool Allocation::writable_by(const Device& by) const {
  return writable.load(std::memory_order_relaxed) & bit(by);
}

MemoryRegistry& memory_registry() {
  static auto* implementation = new MemoryRegistry::Implementation;
  static auto* registry = new MemoryRegistry(*implementation);
  return *registry;
}

bool MemoryRegistry::add(std::shared_ptr<Allocation> allocation) {
  std::unique_lock lock(implementation_.mutex);
  auto& map = implementation_.by_address;
  auto next = map.lower_bound(allocation->address);
  if (next != map.end() && next->first < allocation->end()) return false;
  if (next != map.begin() && std::prev(next)->second->end() > allocation->address) return false;
  compute_access(*allocation);
  publish(*allocation, allocation->readable, allocation->writable);
  const uint64_t address = allocation->address;
  map.emplace_hint(next, address, std::move(allocation));
  return true;
}

std::shared_ptr<Allocation> MemoryRegistry::find(uint64_t address) const {
  std::shared_lock lock(implementation_.mutex);
  return implementation_.find(address);
}

bool MemoryRegistry::any(const std::function<bool(const Allocation&)>& predicate) const {
  std::shared_lock lock(implementation_.mutex);
  return std::ranges::any_of(implementation_.by_address,
                             [&](const auto& entry) { return predicate(*entry.second); });
}

std::shared_ptr<Allocation> MemoryRegistry::hold(uint64_t address) {
  std::shared_lock lock(implementation_.mutex);
  std::shared_ptr<Allocation> allocation = implementation_.find(address);
  if (!allocation) return nullptr;
  // Under the lock, so that no new holds are taken after the allocation has been removed.
  allocation->holds.fetch_add(1, std::memory_order_relaxed);
  Allocation* const held = allocation.get();
  return {held, [allocation = std::move(allocation)](Allocation*) {
            allocation->holds.fetch_sub(1, std::memory_order_release);  // for wait_for_holds()
          }};
}

std::shared_ptr<Allocation> MemoryRegistry::find_base(uint64_t address) const {
  std::shared_lock lock(implementation_.mutex);
  auto it = implementation_.by_address.find(address);
  return it == implementation_.by_address.end() ? nullptr : it->second;
}

bool MemoryRegistry::covered(uint64_t address, size_t bytes,
                             std::shared_ptr<Allocation>* first) const {
  std::shared_lock lock(implementation_.mutex);
  std::shared_ptr<Allocation> allocation = implementation_.find(address);
  if (first) *first = allocation;
  uint64_t left = bytes;
  while (allocation) {
    const uint64_t here = allocation->end() - address;
    if (left <= here) return true;
    left -= here;
    address += here;
    allocation = implementation_.find(address);
  }
  return false;
}

bool MemoryRegistry::overlaps(uint64_t address, size_t bytes) const {
  std::shared_lock lock(implementation_.mutex);
  auto next = implementation_.by_address.lower_bound(address);
  if (next != implementation_.by_address.end() && next->first < address + bytes) return true;
  return implementation_.find(address) != nullptr;
}

std::shared_ptr<Allocation> MemoryRegistry::remove(
    uint64_t address, const std::function<bool(const Allocation&)>& accept) {
  std::unique_lock lock(implementation_.mutex);
  auto it = implementation_.by_address.find(address);
  if (it == implementation_.by_address.end() || !accept(*it->second)) return nullptr;
  std::shared_ptr<Allocation> allocation = std::move(it->second);
  implementation_.by_address.erase(it);
  publish(*allocation, 0, 0);
  return allocation;
}

std::vector<std::shared_ptr<Allocation>> MemoryRegistry::remove_if(
    const std::function<bool(const Allocation&)>& predicate) {
  std::vector<std::shared_ptr<Allocation>> removed;
  std::unique_lock lock(implementation_.mutex);
  auto& map = implementation_.by_address;
  for (auto it = map.begin(); it != map.end();) {
    if (!predicate(*it->second)) {
      ++it;
      continue;
    }
    publish(*it->second, 0, 0);
    removed.push_back(std::move(it->second));
    it = map.erase(it);
  }
  return removed;
}

void MemoryRegistry::set_access(const std::shared_ptr<Allocation>& allocation, uint32_t readable,
                                uint32_t writable) {
  std::unique_lock lock(implementation_.mutex);
  allocation->readable = readable;
  allocation->writable = writable;
  auto it = implementation_.by_address.find(allocation->address);
  if (it != implementation_.by_address.end() && it->second == allocation) {
    publish(*allocation, readable, writable);
  }
}

void MemoryRegistry::refresh(const std::function<bool(const Allocation&)>& predicate) {
  std::unique_lock lock(implementation_.mutex);
  for (auto& [address, allocation] : implementation_.by_address) {
    if (!predicate(*allocation)) continue;
    compute_access(*allocation);
    publish(*allocation, allocation->readable, allocation->writable);
  }
}

uint64_t next_memory_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<Arena> device_arena(Device& device) {
  static std::mutex mutex;
  static auto* arenas = new std::map<int, std::shared_ptr<Arena>>;
  std::lock_guard lock(mutex);
  std::shared_ptr<Arena>& arena = (*arenas)[device.ordinal()];
  if (!arena) arena = std::make_shared<Arena>(device_file_name(device.number()));
  return arena;
}

CUresult allocate_device_memory(Context& context, size_t bytes, MemoryKind kind,
                                CUdeviceptr* address) {
  Device& device = context.device();
  if (bytes > device.total_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t charged = round_up(bytes, kBlockGranularity);
  if (!device.charge(charged)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::shared_ptr<Arena> arena = device_arena(device);
  std::optional<Arena::Block> block = arena->allocate(bytes);
  if (!block) {
    device.refund(charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto allocation = std::make_shared<Allocation>();
  allocation->address = block->address;
  allocation->bytes = bytes;
  allocation->kind = kind;
  allocation->device = &device;
  allocation->owner = &context;
  allocation->id = next_memory_id();
  allocation->block = *block;
  allocation->arena = std::move(arena);
  *address = block->address;
  memory_registry().add(std::move(allocation));
  return CUDA_SUCCESS;
}

CUresult allocate_host_memory(Context& context, size_t bytes, MemoryKind kind, unsigned flags,
                              CUdeviceptr* address) {
  if (bytes > (size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t mapped_bytes = round_up(bytes, kPageBytes);
  // Parent and child share page-locked memory after fork() (driver 580 on an H100).
  const int sharing = kind == MemoryKind::kHost ? MAP_SHARED : MAP_PRIVATE;
  void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                        sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = std::make_shared<Allocation>();
  allocation->address = reinterpret_cast<uint64_t>(mapped);
  allocation->bytes = bytes;
  allocation->kind = kind;
  allocation->owner = &context;
  allocation->flags = flags;
  allocation->id = next_memory_id();
  allocation->mapping = allocation->address;
  allocation->mapping_bytes = mapped_bytes;
  *address = allocation->address;
  memory_registry().add(std::move(allocation));
  return CUDA_SUCCESS;
}

void wait_for_holds(const Allocation& allocation) {
  auto pause = std::chrono::microseconds(10);
  while (allocation.holds.load(std::memory_order_acquire) != 0) {  // see hold()
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(1)) pause *= 2;
  }
}

void release_memory(Allocation& allocation) {
  if (allocation.kind != MemoryKind::kPool && allocation.kind != MemoryKind::kGraph) {
    wait_for_holds(allocation);
  }
  switch (allocation.kind) {
    case MemoryKind::kDevice:
    case MemoryKind::kModule:
    case MemoryKind::kHeap:
      allocation.device->refund(allocation.block.bytes);
      allocation.arena->release(allocation.block);
      break;
    case MemoryKind::kPool:
      allocation.pool->recycle(allocation);
      break;
    case MemoryKind::kGraph:
      release_graph_memory(allocation);
      break;
    case MemoryKind::kRegistered:
      break;
    case MemoryKind::kMapped:
      break;  // vmm.cpp unmaps within the reservation
    case MemoryKind::kHost:
    case MemoryKind::kManaged:
    case MemoryKind::kImported:
      if (allocation.mapping != 0) {
        ::munmap(reinterpret_cast<void*>(allocation.mapping), allocation.mapping_bytes);
      }
      break;
  }
}

void release_memory_of(Context& context) {
  // A pool's memory belongs to its device and stays. A block whose free was queued in this context
  // is released here, because that free will not execute.
  std::vector<std::shared_ptr<Allocation>> gone =
      memory_registry().remove_if([&](const Allocation& a) {
        return a.owner == &context && (a.kind != MemoryKind::kPool || a.freeing);
      });
  for (const std::shared_ptr<Allocation>& allocation : gone) release_memory(*allocation);
}

}  // namespace softgpu::driver
