// What lies at an address: the registry of every allocation the process can name.
//
// Each address a CUDA call may be given belongs to at most one Allocation: device memory, pinned,
// registered or managed host memory, a mapping of the VMM family, memory opened from another
// process, a module's globals. The registry answers what an address is, and keeps the devices'
// MemoryMaps in step: an allocation is in the map of every device whose kernels may touch it
// (visible_to()).
//
// Ownership: the registry holds every allocation until it is freed; lookups return a reference that
// keeps the record (not the memory) alive. Host and device addresses are the same numbers.
// Any thread; one shared mutex. Nothing blocks but release_memory().
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
  kModule,      // globals and constants
  kHeap,        // device-side malloc
  kHost,        // cuMemHostAlloc
  kRegistered,  // cuMemHostRegister
  kManaged,     // cuMemAllocManaged and __managed__ variables
  kMapped,      // cuMemMap
  kImported,    // cuIpcOpenMemHandle, cuMemPoolImportPointer
};

struct Allocation {
  CUdeviceptr address = 0;
  size_t bytes = 0;  // as asked for
  MemoryKind kind = MemoryKind::kDevice;
  Device* device = nullptr;     // where it lives; nullptr: in host memory
  Context* owner = nullptr;     // goes with it; nullptr for mapped and imported-pool memory
  unsigned flags = 0;           // of cuMemHostAlloc, cuMemHostRegister or cuMemAllocManaged
  std::atomic<uint64_t> id{0};  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  std::atomic<bool> sync_memops{false};
  // A stream-ordered free is queued; kGraph: also while no launch has allocated it.
  std::atomic<bool> freeing{false};
  std::atomic<bool> abandoned{false};        // kGraph: its graph is gone, it goes when it is freed
  Arena::Block block;                        // kDevice, kModule, kHeap, kPool, kGraph
  std::shared_ptr<Arena> arena;              // where `block` came from
  std::shared_ptr<MemoryPool> pool;          // kPool, and kImported from a pool
  std::shared_ptr<PhysicalMemory> physical;  // kMapped
  uint64_t mapping = 0;  // kImported, kHost, kManaged: what to unmap; 0: nothing
  size_t mapping_bytes = 0;
  std::atomic<int> holds{0};  // see MemoryRegistry::hold()
  rcuda::cuda::ManagedAdvice
      advice;          // kManaged, of the whole; guarded by a mutex of managed_api.cpp
  int open_count = 1;  // kImported: cuIpcOpenMemHandle is counted
  std::atomic<bool> of_module{false};  // kModule, and kManaged of a __managed__ variable

  // Which devices' kernels may touch it and how, by ordinal; for kMapped and kPool set by
  // cuMemSetAccess and cuMemPoolSetAccess, otherwise computed.
  std::atomic<uint32_t> readable{0}, writable{0};
  uint32_t published_readable = 0, published_writable = 0;  // what the maps say; the registry's

  uint64_t end() const { return address + bytes; }
  bool on_host() const { return device == nullptr; }
  bool readable_by(const Device& by) const;
};

class MemoryRegistry {
 public:
  // Takes the allocation in and shows it to the devices that may touch it. False when its range
  // overlaps another.
  bool add(std::shared_ptr<Allocation> allocation);
  // The allocation that holds `address`; nullptr when there is none.
  std::shared_ptr<Allocation> find(uint64_t address) const;
  // The same, but the reference keeps the memory as well: release_memory() waits for its end. For
  // copies, which other contexts than the owner's may have queued.
  std::shared_ptr<Allocation> hold(uint64_t address);
  // The allocation that begins at `address`.
  std::shared_ptr<Allocation> find_base(uint64_t address) const;
  // True when every byte of the range belongs to an allocation (several adjacent mappings may share
  // it). `*first` is the allocation of the first byte, nullptr when there is none.
  bool covered(uint64_t address, size_t bytes, std::shared_ptr<Allocation>* first) const;
  // True when any byte of the range belongs to an allocation.
  bool overlaps(uint64_t address, size_t bytes) const;
  // Takes the allocation that begins at `address` out of the registry and every map; nullptr when
  // none does or `accept` declines it.
  std::shared_ptr<Allocation> remove(uint64_t address,
                                     const std::function<bool(const Allocation&)>& accept);
  std::vector<std::shared_ptr<Allocation>> remove_if(
      const std::function<bool(const Allocation&)>& predicate);
  // Sets access bits under the registry's lock and shows the change.
  void set_access(const std::shared_ptr<Allocation>& allocation, uint32_t readable,
                  uint32_t writable);
  // Recomputes who sees the allocations for which `predicate` holds: peer access changed.
  void refresh(const std::function<bool(const Allocation&)>& predicate);

  struct Implementation;

 private:
  friend MemoryRegistry& memory_registry();
  explicit MemoryRegistry(Implementation& implementation) : implementation_(implementation) {}
  Implementation& implementation_;
};
MemoryRegistry& memory_registry();

// A process-wide unique number for allocations, streams of blocks, pools.
uint64_t next_memory_id();

// Device memory of `context`'s device from its default arena: charged and registered.
CUresult allocate_device_memory(Context& context, size_t bytes, MemoryKind kind,
                                CUdeviceptr* address);
// Host memory, page-aligned, registered. `kind` is kHost or kManaged.
CUresult allocate_host_memory(Context& context, size_t bytes, MemoryKind kind, unsigned flags,
                              CUdeviceptr* address);
// Gives back what the allocation holds; it is out of the registry already. Waits for copies that
// still need the memory, unless it is a pool's or a graph's, which stays where it is.
void release_memory(Allocation& allocation);
// The part of it that waits.
void wait_for_holds(const Allocation& allocation);
// Everything that belongs to a context that is going.
void release_memory_of(Context& context);

// The device's default arena (plain allocations).
std::shared_ptr<Arena> device_arena(Device& device);

}  // namespace softgpu::driver
