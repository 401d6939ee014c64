// Registry: all allocations of the client, by address. The registry shows without a round trip
// which worker has an address, its pointer attributes, and the direction of cudaMemcpyDefault
// copies.
//
// Threads: any; lookups share a lock. Entries are returned as copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "client/session/address_windows.h"
#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;

enum class Placement : uint8_t {
  kDevice,       // cuMemAlloc and its variants
  kDeviceAsync,  // cuMemAllocAsync: freed in stream order
  kGlobal,       // a variable of a module or library
  kHost,         // page-locked client memory, usable by kernels at the same address
  kRegistered,   // cuMemHostRegister
  kManaged,      // page-locked client memory; with a session: managed memory of its worker
  kMapped,       // cuMemMap; with `openings`: memory of another process (cuIpcOpenMemHandle)
};

struct Allocation {
  uint64_t base = 0;
  size_t bytes = 0;
  Placement placement = Placement::kDevice;
  Session* session = nullptr;  // null for host memory known to all sessions
  uint32_t device = 0;         // the client's ordinal
  wire::ObjectId context = 0;
  unsigned flags = 0;           // as given to the allocating call
  unsigned openings = 0;        // kMapped: calls of cuIpcOpenMemHandle not yet closed
  uint64_t buffer_id = 0;       // CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the process
  CUmemoryPool pool = nullptr;  // kDeviceAsync: the pool; null for the device's current pool
  bool sync_memops = false;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  bool of_graph = false;        // kDeviceAsync: allocated by each launch of a graph
  bool reachable = false;       // host memory: kernels of every session can use it
  // The sessions that know this host memory, and its region in each; null for other memory. Copies
  // of the Allocation share the list.
  std::shared_ptr<const std::vector<std::pair<Session*, transport::RegionId>>> exposed;
};

// Whether the memory is a managed allocation, or a managed variable (kGlobal with
// CU_MEM_ATTACH_GLOBAL).
inline bool is_managed(const Allocation& allocation) {
  return allocation.placement == Placement::kManaged ||
         (allocation.placement == Placement::kGlobal && (allocation.flags & CU_MEM_ATTACH_GLOBAL));
}

class Registry {
 public:
  // Assigns a buffer_id, unless the allocation has one. Returns false if the allocation overlaps a
  // known allocation that is not stale, or if it belongs to a session and is not inside of the
  // session's addresses. For addresses that a worker has returned, use record_memory()
  // (worker_memory.h), which ends the session in the second case.
  bool add(Allocation allocation);
  // Returns the allocation that contains the address.
  std::optional<Allocation> find(uint64_t address) const;
  std::optional<Allocation> remove(uint64_t base);  // the allocation at `base`
  // Whether any known allocation overlaps [address, address + bytes).
  bool overlaps(uint64_t address, size_t bytes) const;
  // Whether an allocation of a graph was ever added.
  bool any_of_graph() const { return any_of_graph_.load(std::memory_order_relaxed); }
  // Removes the allocations of a context that ends. Returns the page-locked and managed memory. The
  // caller must free the returned memory that has no session, because it is memory of this process.
  // Memory of pools and of cuMemMap belongs to the device and stays.
  std::vector<Allocation> remove_context(uint32_t device, wire::ObjectId context);
  // Assigns address windows to a session. The session may not have memory at other addresses.
  // `windows` must live as long as this object.
  void grant(const AddressWindows& windows, const Session* session);
  // Records a range of cuMemAddressReserve. Returns false if it is not inside of the session's
  // addresses.
  bool reserve(uint64_t base, size_t bytes, Session* session);
  struct Reserved {
    uint64_t base = 0;
    size_t bytes = 0;
    Session* session = nullptr;
  };
  std::optional<Reserved> unreserve(uint64_t base);  // the reservation that begins at `base`
  // Returns the reservation that contains the address.
  std::optional<Reserved> reservation(uint64_t address) const;
  // Calls `change` with the allocation that begins at `base`, if it exists. `change` must not
  // change the range.
  template <typename Change>
  void update(uint64_t base, const Change& change) {
    WriterLock lock(mutex_);
    if (auto found = allocations_.find(base); found != allocations_.end()) change(found->second);
  }

 private:
  // Removes stale entries in the range of a new allocation. Entries become stale because the client
  // is not notified when a module's variables end, or when memory of a graph ends with the graph or
  // with a node that frees it.
  void forget_stale(const Allocation& allocation) RCUDA_REQUIRES(mutex_);
  // Whether the session was granted the whole range.
  bool is_granted(uint64_t base, size_t bytes, const Session* session) const RCUDA_REQUIRES(mutex_);

  mutable SharedMutex mutex_;
  struct Reservation {
    size_t bytes = 0;
    Session* session = nullptr;
  };

  struct Grant {
    const AddressWindows* windows = nullptr;
    const Session* session = nullptr;
  };

  std::vector<Grant> grants_ RCUDA_GUARDED_BY(mutex_);                     // one per session
  std::map<uint64_t, Allocation> allocations_ RCUDA_GUARDED_BY(mutex_);    // by base
  std::map<uint64_t, Reservation> reservations_ RCUDA_GUARDED_BY(mutex_);  // by base
  uint64_t next_buffer_id_ RCUDA_GUARDED_BY(mutex_) = 1;
  std::atomic<bool> any_of_graph_{false};
};

}  // namespace rcuda::client
