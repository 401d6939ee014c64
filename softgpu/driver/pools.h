// Memory pools and stream-ordered allocation, and the memory of graph nodes.
//
// A pool allocates blocks of its arena and keeps freed blocks for reuse, up to its release
// threshold. cuMemAllocAsync allocates at the call, because the address must be known, and makes
// the memory visible to kernels at once. cuMemFreeAsync queues a FreeOperation; its execution makes
// the memory invalid. A block whose free is queued on a stream can be reused at once for an
// allocation of the same size on that stream, because stream order allows it. When memory runs out,
// the pool first releases the blocks it keeps, then waits for queued frees, then fails.
//
// Memory that was freed in stream order returns to the device only after a synchronising call has
// seen that the free has completed. Memory beyond the release threshold returns in that call, as
// NVIDIA documents for the threshold and for cuMemPoolTrimTo. Before that call the pool can reuse
// the memory, but trim() does not release it.
//
// Graph memory has its address from the creation of the node until no graph, executable graph or
// launch uses it (graph_memory.h). Kernels may touch it from execute_allocate to execute_free. The
// stream layer calls the functions for graphs. Any thread. allocate() and free_graph_memory() may
// wait for the work of the context; nothing else blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/arena.h"
#include "softgpu/driver/memory.h"

namespace softgpu::driver {

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  MemoryPool(Device& device, CUmemAllocationHandleType handle_types, size_t max_bytes,
             rcuda::UniqueFd file = {}, bool imported = false);
  ~MemoryPool();

  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }
  static std::shared_ptr<MemoryPool> from_handle(CUmemoryPool handle);
  Device& device() { return device_; }
  CUmemAllocationHandleType handle_types() const { return handle_types_; }
  bool imported() const { return imported_; }
  Arena& arena() { return *arena_; }

  // `stream`: memory whose free is queued on this stream may be reused. nullptr: no such reuse.
  CUresult allocate(Context& context, size_t bytes, CUstream stream, CUdeviceptr* address);
  // A free of `allocation` was queued on `stream`, a stream of `context`.
  void free_queued(const std::shared_ptr<Allocation>& allocation, Context& context,
                   CUstream stream);
  // Undoes free_queued(), because the free could not be queued.
  void free_refused(Allocation& allocation);
  // A queued free of the allocation executes. `id`: the allocation's id when the free was queued.
  // True if the block is now free; false if a later allocation has taken it over.
  bool free_executes(const Allocation& allocation, uint64_t id);
  // Keeps or releases the block of a freed allocation, which has been removed from the registry.
  void recycle(Allocation& allocation);
  void trim(size_t keep_bytes);
  // Called after the wait of a synchronising call. From now on, memory whose free has executed may
  // return to the device. Releases the part of this memory that exceeds the release threshold.
  void observe_frees();
  // The pool is destroyed: its free blocks are released now, the others when they are freed.
  void retire();

  CUresult attribute(CUmemPool_attribute attribute, void* value);
  CUresult set_attribute(CUmemPool_attribute attribute, void* value);
  uint32_t readable_devices() const { return readable_.load(std::memory_order_relaxed); }
  uint32_t writable_devices() const { return writable_.load(std::memory_order_relaxed); }
  void set_access(uint32_t readable, uint32_t writable);

 private:
  std::shared_ptr<Allocation> reuse_queued_locked(size_t bytes, CUstream stream);
  bool unqueue_locked(const Allocation& allocation);
  bool take_kept_locked(size_t bytes, Arena::Block* block);
  void trim_locked(size_t keep_bytes);
  bool has_unobserved_locked() const;
  void account_use_locked(int64_t bytes);

  Device& device_;
  const CUmemAllocationHandleType handle_types_;
  const size_t max_bytes_;  // 0: the device's memory
  const bool imported_;
  const std::shared_ptr<Arena> arena_;
  std::atomic<uint32_t> readable_, writable_;

  std::mutex mutex_;
  struct Kept {
    Arena::Block block;
    bool observed = false;  // see observe_frees()
  };
  std::multimap<size_t, Kept> kept_;  // free blocks, by size
  bool retired_ = false;
  struct QueuedFree {
    std::shared_ptr<Allocation> allocation;
    CUstream stream;
  };
  std::vector<QueuedFree> queued_;
  std::set<CUdeviceptr> executing_;    // queued frees that are executing: memory not released yet
  int reuse_policies_[3] = {1, 1, 1};  // index: CU_MEMPOOL_ATTR_REUSE_* - 1
  uint64_t release_threshold_ = 0;
  uint64_t reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
};

std::shared_ptr<MemoryPool> default_pool(Device& device);
// Calls observe_frees() of all the device's pools. cuStreamSynchronize, cuEventSynchronize and
// cuCtxSynchronize do this after their wait.
void observe_frees(Device& device);
std::shared_ptr<MemoryPool> current_pool(Device& device);
void set_current_pool(Device& device, std::shared_ptr<MemoryPool> pool);

// Memory for a graph's allocation node. While it is allocated, it is visible to kernels of the
// context's device and of the devices in `access` (bits by ordinal). Counted in
// CU_GRAPH_MEM_ATTR_*.
CUresult reserve_graph_memory(Context& context, size_t bytes, uint32_t access,
                              CUdeviceptr* address);
// Called when no graph, executable graph or launch uses the memory any more. Memory that a launch
// has allocated is released when it is freed, other memory now.
void abandon_graph_memory(CUdeviceptr address);
// cuMemFree of graph memory that a launch has allocated: waits for the context's work. A later
// launch allocates it again.
CUresult free_graph_memory(Context& context, Allocation& allocation);
// release_memory() for MemoryKind::kGraph.
void release_graph_memory(Allocation& allocation);
// cuDeviceGetGraphMemAttribute and cuDeviceSetGraphMemAttribute.
CUresult graph_memory_attribute(Device& device, CUgraphMem_attribute attribute, void* value);
CUresult reset_graph_memory_high(Device& device, CUgraphMem_attribute attribute, void* value);

}  // namespace softgpu::driver
