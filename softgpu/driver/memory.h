// The registry of all allocations that the process can use. Finds the allocation at an address.
//
// Each valid address belongs to exactly one Allocation: device memory; pinned, registered or
// managed host memory; a mapping of the VMM family; memory opened from another process; a module's
// globals. The registry also keeps the devices' MemoryMaps up to date: an allocation is in the map
// of every device whose kernels may touch it (Allocation::readable).
//
// Ownership: the registry holds every allocation until it is freed. Lookups return a reference that
// keeps the record alive, not the memory. Host and device addresses are the same numbers. Any
// thread; one shared mutex. Only release_memory(), release_memory_of() and wait_for_holds() block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <cuda.h>

#include "common/cuda/managed_advice.h"
#include "softgpu/driver/arena.h"
#include "softgpu/driver/operation.h"
#include "softgpu/exec/memory_map.h"

namespace softgpu::driver {

class Context;
class Device;
class MemoryPool;
struct PhysicalMemory;

enum class MemoryKind : uint8_t {
  kDevice,      // cuMemAlloc
  kPool,        // cuMemAllocAsync
  kGraph,       // a memory node of a graph
  kModule,      // globals and constants, arrays, a context's own memory
  kHeap,        // device-side malloc
  kHost,        // cuMemHostAlloc
  kRegistered,  // cuMemHostRegister
  kManaged,     // cuMemAllocManaged and __managed__ variables
  kMapped,      // cuMemMap
  kImported,    // cuIpcOpenMemHandle, cuMemPoolImportPointer
};

struct Allocation {
  CUdeviceptr address = 0;
  size_t bytes = 0;  // as requested
  MemoryKind kind = MemoryKind::kDevice;
  Device* device = nullptr;  // nullptr: host memory
  // The context whose end frees the memory; nullptr for mapped memory, imported-pool memory and a
  // library's __managed__ variables. kPool: the primary context, whose end does not free the
  // memory; after a free has been queued, the context of that free.
  Context* owner = nullptr;
  unsigned flags = 0;           // of the call that made it; kGraph: the devices with access (bits)
  std::atomic<uint64_t> id{0};  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  std::atomic<bool> sync_memops{false};
  // A stream-ordered free is queued. kGraph: also true while no launch has allocated the memory.
  std::atomic<bool> freeing{false};
  // kGraph: no graph or executable graph uses the memory any more. The next free also releases it.
  std::atomic<bool> abandoned{false};
  Arena::Block block;                        // kDevice, kModule, kHeap, kPool, kGraph
  std::shared_ptr<Arena> arena;              // the arena of `block`
  std::shared_ptr<MemoryPool> pool;          // kPool, and kImported from a pool
  std::shared_ptr<PhysicalMemory> physical;  // kMapped
  uint64_t mapping = 0;  // kImported, kHost, kManaged: mapping to unmap; 0: none
  size_t mapping_bytes = 0;
  std::atomic<int> holds{0};  // see MemoryRegistry::hold()
  rcuda::cuda::ManagedAdvice
      advice;          // kManaged, for the whole range; guarded by a mutex of managed_api.cpp
  int open_count = 1;  // kImported: counts cuIpcOpenMemHandle
  std::atomic<bool> of_module{false};  // kModule, and kManaged for a __managed__ variable

  // The devices whose kernels may read or write the memory, as bits by ordinal. cuMemSetAccess sets
  // them for kMapped, cuMemPoolSetAccess for the memory of a pool, and execute_allocate() and
  // execute_free() for kGraph. For other kinds they are computed.
  std::atomic<uint32_t> readable{0}, writable{0};
  // The access that the devices' maps show now; guarded by the registry's mutex.
  uint32_t published_readable = 0, published_writable = 0;

  uint64_t end() const { return address + bytes; }
  bool on_host() const { return device == nullptr; }
  bool readable_by(const Device& by) const;
  bool writable_by(const Device& by) const;
};

class MemoryRegistry {
 public:
  // Adds the allocation and makes it visible to the devices that may touch it. False if its range
  // overlaps another.
  bool add(std::shared_ptr<Allocation> allocation);
  // nullptr if no allocation contains `address`.
  std::shared_ptr<Allocation> find(uint64_t address) const;
  // Like find(), but the reference also keeps the memory: release_memory() waits until the
  // reference is dropped. For copies and fills, because a free does not wait for the work of all
  // contexts.
  std::shared_ptr<Allocation> hold(uint64_t address);
  // The allocation that begins at `address`.
  std::shared_ptr<Allocation> find_base(uint64_t address) const;
  // True if every byte of the range belongs to an allocation (several adjacent mappings may cover
  // it). `*first` is the allocation of the first byte, or nullptr.
  bool covered(uint64_t address, size_t bytes, std::shared_ptr<Allocation>* first) const;
  // True if any byte of the range belongs to an allocation.
  bool overlaps(uint64_t address, size_t bytes) const;
  bool any(const std::function<bool(const Allocation&)>& predicate) const;
  // Removes the allocation that begins at `address` from the registry and every map. nullptr if no
  // allocation begins there or `accept` declines it.
  std::shared_ptr<Allocation> remove(uint64_t address,
                                     const std::function<bool(const Allocation&)>& accept);
  std::vector<std::shared_ptr<Allocation>> remove_if(
      const std::function<bool(const Allocation&)>& predicate);
  // Sets the access bits under the registry's lock and updates the maps.
  void set_access(const std::shared_ptr<Allocation>& allocation, uint32_t readable,
                  uint32_t writable);
  // Recomputes which devices see the allocations for which `predicate` holds, after a change of
  // peer access.
  void refresh(const std::function<bool(const Allocation&)>& predicate);

  struct Implementation;

 private:
  friend MemoryRegistry& memory_registry();
  explicit MemoryRegistry(Implementation& implementation) : implementation_(implementation) {}
  Implementation& implementation_;
};
MemoryRegistry& memory_registry();

// Returns a new id, unique in the process, for an allocation, physical memory or an exported event.
uint64_t next_memory_id();

// Device memory of `context`'s device, from its default arena: charged to the account and
// registered.
CUresult allocate_device_memory(Context& context, size_t bytes, MemoryKind kind,
                                CUdeviceptr* address);
// Host memory, page-aligned, registered. `kind` is kHost or kManaged.
CUresult allocate_host_memory(Context& context, size_t bytes, MemoryKind kind, unsigned flags,
                              CUdeviceptr* address);
// Releases the resources of an allocation that has been removed from the registry. Waits for copies
// that still need the memory, except for memory of a pool or graph, which is freed in stream order.
void release_memory(Allocation& allocation);
// The part of release_memory() that waits.
void wait_for_holds(const Allocation& allocation);
// Releases all memory of a context that is being torn down.
void release_memory_of(Context& context);

// The device's default arena (plain allocations).
std::shared_ptr<Arena> device_arena(Device& device);

}  // namespace softgpu::driver
