// Memory pools and stream-ordered allocation, and the memory of graph nodes.
//
// A pool hands out blocks of its arena and keeps freed ones for reuse, up to its release threshold.
// cuMemAllocAsync allocates at once (the address must be known) and shows the memory to kernels at
// once; cuMemFreeAsync queues a FreeOperation, and the memory becomes invalid when that executes. A
// block whose free is queued on a stream is reused for an allocation of the same size on that
// stream without waiting, as stream order allows. When memory runs out, the pool gives back what it
// keeps, then waits for queued frees, and only then fails.
//
// What was freed in stream order goes back to the device only once a synchronising call has seen
// that the free is over: beyond the release threshold in that call itself, as NVIDIA's
// documentation of the threshold and of cuMemPoolTrimTo says. Until then the pool reuses it, and
// trimming leaves it.
//
// Graph memory has its address from the creation of the node to the end of the graph; kernels may
// touch it from execute_allocate to execute_free. The stream layer calls the functions for graphs.
// Any thread. allocate() may wait for the context's work as said; nothing else blocks.
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

  // `stream` is the key of stream order: frees queued on the same one are reused; nullptr for none.
  CUresult allocate(Context& context, size_t bytes, CUstream stream, CUdeviceptr* address);
  // A free of `allocation` was queued on `stream`, which is of that context.
  void free_queued(const std::shared_ptr<Allocation>& allocation, Context& context,
                   CUstream stream);
  // A queued free of the block at `address` executes: true when the block is really free now, false
  // when a later allocation has taken it over.
  bool free_executes(CUdeviceptr address);
  // A freed allocation, already out of the registry: its block is kept or given back.
  void recycle(Allocation& allocation);
  void trim(size_t keep_bytes);
  // A synchronising call has seen all frees that executed.
  void observe_frees();
  // The pool is destroyed: all that is free goes back, now or when it is freed.
  void retire();

  CUresult attribute(CUmemPool_attribute attribute, void* value);
  CUresult set_attribute(CUmemPool_attribute attribute, void* value);
  uint32_t readable_devices() const { return readable_.load(std::memory_order_relaxed); }
  uint32_t writable_devices() const { return writable_.load(std::memory_order_relaxed); }
  void set_access(uint32_t readable, uint32_t writable);

 private:
  std::shared_ptr<Allocation> reuse_queued_locked(size_t bytes, CUstream stream);
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
    bool observed = false;  // may go back to the device
  };
  std::multimap<size_t, Kept> kept_;  // free, by size
  bool retired_ = false;
  struct QueuedFree {
    std::shared_ptr<Allocation> allocation;
    CUstream stream;
  };
  std::vector<QueuedFree> queued_;
  std::set<CUdeviceptr> executing_;        // queued frees that have begun: not given back yet
  std::map<CUdeviceptr, int> taken_over_;  // queued frees that must do nothing when they execute
  int reuse_policies_[3] = {1, 1, 1};      // by CU_MEMPOOL_ATTR_REUSE_*, from 1
  uint64_t release_threshold_ = 0;
  uint64_t reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
};

std::shared_ptr<MemoryPool> default_pool(Device& device);
// observe_frees() of all the device's pools: what cuStreamSynchronize, cuEventSynchronize and
// cuCtxSynchronize do when they are done waiting.
void observe_frees(Device& device);
std::shared_ptr<MemoryPool> current_pool(Device& device);
void set_current_pool(Device& device, std::shared_ptr<MemoryPool> pool);

// Memory for a graph's allocation node, seen by kernels of the devices in `access` (bits by
// ordinal) while it is allocated. Counted as CU_GRAPH_MEM_ATTR_*.
CUresult reserve_graph_memory(Context& context, size_t bytes, uint32_t access,
                              CUdeviceptr* address);
// The graph with that node is gone: the memory goes now, or when it is freed if it is in use.
void abandon_graph_memory(CUdeviceptr address);
// cuMemFree of graph memory that a launch allocated: waits for the context's work. A later launch
// allocates it again.
CUresult free_graph_memory(Context& context, Allocation& allocation);
// release_memory() for MemoryKind::kGraph.
void release_graph_memory(Allocation& allocation);
// cuDeviceGetGraphMemAttribute and cuDeviceSetGraphMemAttribute.
CUresult graph_memory_attribute(Device& device, CUgraphMem_attribute attribute, void* value);
CUresult reset_graph_memory_high(Device& device, CUgraphMem_attribute attribute, void* value);

}  // namespace softgpu::driver
