#include "softgpu/driver/pools.h"

#include <algorithm>
#include <array>

#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"

namespace softgpu::driver {
namespace {

// A kept block may exceed the request that it serves by 1/kReuseSlack of the request.
constexpr size_t kReuseSlack = 8;

struct DevicePools {
  std::mutex mutex;
  struct Entry {
    std::shared_ptr<MemoryPool> standard, current;
    uint64_t graph_used = 0, graph_used_high = 0;
  };
  std::array<Entry, kMaxDevices> by_device;
};

DevicePools& device_pools() {
  static auto* instance = new DevicePools;
  return *instance;
}

DevicePools::Entry& entry_locked(DevicePools& pools, Device& device) {
  return pools.by_device[static_cast<size_t>(device.ordinal())];
}

}  // namespace

MemoryPool::MemoryPool(Device& device, CUmemAllocationHandleType handle_types, size_t max_bytes,
                       rcuda::UniqueFd file, bool imported)
    : device_(device),
      handle_types_(handle_types),
      max_bytes_(max_bytes),
      imported_(imported),
      arena_(std::make_shared<Arena>(device_file_name(device.number()), std::move(file))),
      readable_(1u << device.ordinal()),
      writable_(1u << device.ordinal()) {}

MemoryPool::~MemoryPool() {
  retired_ = true;
  trim_locked(0);
}

std::shared_ptr<MemoryPool> MemoryPool::from_handle(CUmemoryPool handle) {
  if (std::shared_ptr<MemoryPool> pool = handle_table<MemoryPool>().find(handle)) return pool;
  for (int i = 0; i < device_count(); ++i) {
    Device* device = device_at(i);
    if (!device) continue;
    std::shared_ptr<MemoryPool> pool = default_pool(*device);
    if (pool->handle() == handle) return pool;
  }
  return nullptr;
}

void MemoryPool::account_use_locked(int64_t bytes) {
  used_ = static_cast<uint64_t>(static_cast<int64_t>(used_) + bytes);
  used_high_ = std::max(used_high_, used_);
}

std::shared_ptr<Allocation> MemoryPool::reuse_queued_locked(size_t bytes, CUstream stream) {
  if (!stream) return nullptr;
  for (auto it = queued_.begin(); it != queued_.end(); ++it) {
    if (it->stream != stream || it->allocation->block.bytes != bytes) continue;
    std::shared_ptr<Allocation> allocation = std::move(it->allocation);
    queued_.erase(it);
    return allocation;
  }
  return nullptr;
}

bool MemoryPool::take_kept_locked(size_t bytes, Arena::Block* block) {
  auto found = kept_.lower_bound(bytes);
  if (found == kept_.end() || found->first > bytes + bytes / kReuseSlack) return false;
  *block = found->second.block;
  kept_.erase(found);
  return true;
}

CUresult MemoryPool::allocate(Context& context, size_t bytes, CUstream stream,
                              CUdeviceptr* address) {
  if (bytes > device_.total_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t rounded = round_up(bytes, kBlockGranularity);
  for (int attempt = 0;; ++attempt) {
    std::unique_lock lock(mutex_);
    if (std::shared_ptr<Allocation> again = reuse_queued_locked(rounded, stream)) {
      account_use_locked(static_cast<int64_t>(rounded));
      again->owner = &device_.primary();
      again->id = next_memory_id();  // so the queued free does nothing when it executes
      again->freeing = false;
      *address = again->address;
      return CUDA_SUCCESS;
    }
    Arena::Block block;
    bool have = take_kept_locked(rounded, &block);
    if (!have && max_bytes_ != 0 && rounded <= max_bytes_) trim_locked(max_bytes_ - rounded);
    if (!have && (max_bytes_ == 0 || reserved_ + rounded <= max_bytes_)) {
      if (!device_.charge(rounded)) {
        trim_locked(0);
        have = device_.charge(rounded);
      } else {
        have = true;
      }
      if (have) {
        std::optional<Arena::Block> fresh = arena_->allocate(rounded);
        if (fresh) {
          block = *fresh;
          reserved_ += rounded;
          reserved_high_ = std::max(reserved_high_, reserved_);
        } else {
          device_.refund(rounded);
          have = false;
        }
      }
    }
    if (!have) {
      const bool more_to_come = !queued_.empty() || !executing_.empty() || has_unobserved_locked();
      lock.unlock();
      if (attempt > 0 || !more_to_come) return CUDA_ERROR_OUT_OF_MEMORY;
      if (CUresult result = context.synchronize()) return result;
      observe_frees();
      continue;
    }
    account_use_locked(static_cast<int64_t>(block.bytes));
    lock.unlock();
    auto allocation = std::make_shared<Allocation>();
    allocation->address = block.address;
    // Kernels may touch the whole block, not only the requested bytes. So this range does not
    // change when a later request takes the allocation over from a queued free.
    allocation->bytes = block.bytes;
    allocation->kind = MemoryKind::kPool;
    allocation->device = &device_;
    allocation->owner = &device_.primary();  // until a free is queued
    allocation->id = next_memory_id();
    allocation->block = block;
    allocation->arena = arena_;
    allocation->pool = shared_from_this();
    *address = block.address;
    memory_registry().add(std::move(allocation));
    return CUDA_SUCCESS;
  }
}

void MemoryPool::free_queued(const std::shared_ptr<Allocation>& allocation, Context& context,
                             CUstream stream) {
  std::lock_guard lock(mutex_);
  // If the context ends before the free has executed, release_memory_of() releases the allocation.
  allocation->owner = &context;
  account_use_locked(-static_cast<int64_t>(allocation->bytes));
  queued_.push_back({allocation, stream});
}

bool MemoryPool::unqueue_locked(const Allocation& allocation) {
  return std::erase_if(queued_, [&](const QueuedFree& queued) {
           return queued.allocation.get() == &allocation;
         }) != 0;
}

void MemoryPool::free_refused(Allocation& allocation) {
  std::lock_guard lock(mutex_);
  if (!unqueue_locked(allocation)) return;  // a later allocation has taken the memory over
  allocation.owner = &device_.primary();
  account_use_locked(static_cast<int64_t>(allocation.bytes));
  allocation.freeing = false;
}

bool MemoryPool::free_executes(const Allocation& allocation, uint64_t id) {
  std::lock_guard lock(mutex_);
  if (allocation.id != id || !unqueue_locked(allocation)) return false;
  executing_.insert(allocation.address);
  return true;
}

void MemoryPool::recycle(Allocation& allocation) {
  if (allocation.block.bytes == 0) return;
  std::lock_guard lock(mutex_);
  // free_queued() has already subtracted a queued free from `used_`.
  if (!allocation.freeing) account_use_locked(-static_cast<int64_t>(allocation.bytes));
  executing_.erase(allocation.address);
  unqueue_locked(allocation);
  kept_.emplace(allocation.block.bytes, Kept{allocation.block, !allocation.freeing});
  if (retired_) trim_locked(0);
}

void MemoryPool::observe_frees() {
  std::lock_guard lock(mutex_);
  for (auto& [bytes, kept] : kept_) kept.observed = true;
  if (reserved_ > release_threshold_) trim_locked(release_threshold_);
}

void MemoryPool::retire() {
  std::lock_guard lock(mutex_);
  retired_ = true;
  trim_locked(0);
}

bool MemoryPool::has_unobserved_locked() const {
  return std::any_of(kept_.begin(), kept_.end(),
                     [](const auto& kept) { return !kept.second.observed; });
}

void MemoryPool::trim(size_t keep_bytes) {
  std::lock_guard lock(mutex_);
  trim_locked(keep_bytes);
}

void MemoryPool::trim_locked(size_t keep_bytes) {
  for (auto it = kept_.end(); it != kept_.begin() && reserved_ > keep_bytes;) {
    --it;
    if (!it->second.observed && !retired_) continue;
    reserved_ -= it->first;
    device_.refund(it->first);
    arena_->release(it->second.block);
    it = kept_.erase(it);
  }
}

CUresult MemoryPool::attribute(CUmemPool_attribute attribute, void* value) {
  std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = reuse_policies_[attribute - 1];
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = release_threshold_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = reserved_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = reserved_high_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = used_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = used_high_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult MemoryPool::set_attribute(CUmemPool_attribute attribute, void* value) {
  std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      reuse_policies_[attribute - 1] = *static_cast<int*>(value) != 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      release_threshold_ = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    // The high-water marks can only be reset.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      used_high_ = used_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void MemoryPool::set_access(uint32_t readable, uint32_t writable) {
  readable_.store(readable, std::memory_order_relaxed);
  writable_.store(writable, std::memory_order_relaxed);
  memory_registry().refresh([this](const Allocation& a) { return a.pool.get() == this; });
}

std::shared_ptr<MemoryPool> default_pool(Device& device) {
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  DevicePools::Entry& entry = entry_locked(pools, device);
  if (!entry.standard) {
    entry.standard = std::make_shared<MemoryPool>(device, CU_MEM_HANDLE_TYPE_NONE, 0);
    entry.current = entry.standard;
  }
  return entry.standard;
}

void observe_frees(Device& device) {
  default_pool(device)->observe_frees();
  std::vector<std::shared_ptr<MemoryPool>> others;
  handle_table<MemoryPool>().for_each([&](MemoryPool& pool) {
    if (&pool.device() == &device) others.push_back(pool.shared_from_this());
  });
  for (const std::shared_ptr<MemoryPool>& pool : others) pool->observe_frees();
}

std::shared_ptr<MemoryPool> current_pool(Device& device) {
  default_pool(device);
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  return entry_locked(pools, device).current;
}

void set_current_pool(Device& device, std::shared_ptr<MemoryPool> pool) {
  default_pool(device);
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  entry_locked(pools, device).current = std::move(pool);
}

CUresult execute_allocate(Context&, const AllocateOperation& operation) {
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(operation.address);
  if (!allocation) return CUDA_SUCCESS;  // a synchronous call has freed it since
  if (allocation->kind != MemoryKind::kGraph) return CUDA_SUCCESS;  // allocated when it was queued
  // For graph memory, `flags` holds the devices that may touch it while it is allocated.
  memory_registry().set_access(allocation, allocation->flags, allocation->flags);
  return CUDA_SUCCESS;
}

CUresult execute_free(Context&, const FreeOperation& operation) {
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(operation.address);
  if (!allocation) return CUDA_SUCCESS;  // a synchronous call has freed it since
  if (allocation->kind == MemoryKind::kGraph) {
    memory_registry().set_access(allocation, 0, 0);
    if (!allocation->abandoned) return CUDA_SUCCESS;
  } else if (allocation->kind == MemoryKind::kPool &&
             !allocation->pool->free_executes(*allocation, operation.id)) {
    return CUDA_SUCCESS;
  }
  if (std::shared_ptr<Allocation> gone = memory_registry().remove(
          operation.address, [&](const Allocation& a) { return &a == allocation.get(); })) {
    release_memory(*gone);
  }
  return CUDA_SUCCESS;
}

CUresult reserve_graph_memory(Context& context, size_t bytes, uint32_t access,
                              CUdeviceptr* address) {
  Device& device = context.device();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > device.total_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t rounded = round_up(bytes, kBlockGranularity);
  if (!device.charge(rounded)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::shared_ptr<Arena> arena = device_arena(device);
  std::optional<Arena::Block> block = arena->allocate(rounded);
  if (!block) {
    device.refund(rounded);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto allocation = std::make_shared<Allocation>();
  allocation->address = block->address;
  allocation->bytes = bytes;
  allocation->kind = MemoryKind::kGraph;
  allocation->freeing = true;  // until a launch allocates it
  allocation->device = &device;
  allocation->owner = &context;
  allocation->flags = access | 1u << device.ordinal();
  allocation->id = next_memory_id();
  allocation->block = *block;
  allocation->arena = std::move(arena);
  *address = block->address;
  memory_registry().add(std::move(allocation));
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  DevicePools::Entry& entry = entry_locked(pools, device);
  entry.graph_used += rounded;
  entry.graph_used_high = std::max(entry.graph_used_high, entry.graph_used);
  return CUDA_SUCCESS;
}

void abandon_graph_memory(CUdeviceptr address) {
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(address);
  if (!allocation || allocation->kind != MemoryKind::kGraph) return;
  allocation->abandoned = true;
  if (!allocation->freeing) return;  // still in use: execute_free() releases it
  if (std::shared_ptr<Allocation> gone = memory_registry().remove(
          address, [&](const Allocation& a) { return &a == allocation.get(); })) {
    release_memory(*gone);
  }
}

CUresult free_graph_memory(Context& context, Allocation& allocation) {
  if (allocation.freeing.exchange(true)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = context.synchronize()) return result;
  return execute_free(context, {allocation.address});
}

void release_graph_memory(Allocation& allocation) {
  allocation.device->refund(allocation.block.bytes);
  allocation.arena->release(allocation.block);
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  entry_locked(pools, *allocation.device).graph_used -= allocation.block.bytes;
}

CUresult graph_memory_attribute(Device& device, CUgraphMem_attribute attribute, void* value) {
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  const DevicePools::Entry& entry = entry_locked(pools, device);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = entry.graph_used;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = entry.graph_used_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult reset_graph_memory_high(Device& device, CUgraphMem_attribute attribute, void* value) {
  if (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
      attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  DevicePools& pools = device_pools();
  std::lock_guard lock(pools.mutex);
  DevicePools::Entry& entry = entry_locked(pools, device);
  entry.graph_used_high = entry.graph_used;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
