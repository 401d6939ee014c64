// What the client knows of memory: every allocation it made, by address, so that routing, pointer
// attributes and the direction of default-kind copies are answered without asking.
//
// Threads: any; lookups share a lock. Entries are copied out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <vector>

#include <cuda.h>

#include "common/transport/link.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;

enum class Placement : uint8_t {
  kDevice,       // cuMemAlloc and friends
  kDeviceAsync,  // cuMemAllocAsync: freed in stream order
  kGlobal,       // a module's variable
  kHost,         // page-locked client memory, usable by kernels at the same address
  kRegistered,   // cuMemHostRegister
  kManaged,
  kMapped,  // cuMemMap
};

struct Allocation {
  uint64_t base = 0;
  size_t bytes = 0;
  Placement placement = Placement::kDevice;
  Session* session = nullptr;  // null for host memory known to all sessions
  uint32_t device = 0;         // the client's ordinal
  wire::ObjectId context = 0;
  unsigned flags = 0;           // as given to the allocating call
  uint64_t buffer_id = 0;       // CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the process
  CUmemoryPool pool = nullptr;  // kDeviceAsync: null is the device's current one
  bool sync_memops = false;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  bool of_graph = false;        // kDeviceAsync: each launch of a graph allocates it anew
  bool reachable = false;       // host memory: kernels of every session can use it
  std::vector<std::pair<Session*, transport::RegionId>> exposed;  // and where it is known, as one
};

// Managed allocations, and managed variables, which are recorded with the flag of such.
inline bool is_managed(const Allocation& allocation) {
  return allocation.placement == Placement::kManaged ||
         (allocation.placement == Placement::kGlobal && (allocation.flags & CU_MEM_ATTACH_GLOBAL));
}

class Registry {
 public:
  // Sets buffer_id. False when it overlaps a known allocation.
  bool add(Allocation allocation);
  std::optional<Allocation> find(uint64_t address) const;  // that contains address
  std::optional<Allocation> remove(uint64_t base);         // that begins there
  // Whether any registered host memory lies in [address, address + bytes).
  bool overlaps(uint64_t address, size_t bytes) const;
  // Whether there ever was memory of a graph.
  bool any_of_graph() const { return any_of_graph_.load(std::memory_order_relaxed); }
  // A context of a device goes, and with it what was allocated in it: forgotten, and memory of the
  // host returned for the caller to end. Memory of pools and mapped memory are the device's.
  std::vector<Allocation> remove_context(uint32_t device, wire::ObjectId context);
  // Ranges of cuMemAddressReserve, which need not lie in the window of the worker that has them.
  void reserve(uint64_t base, size_t bytes, Session* session);
  void unreserve(uint64_t base);
  Session* reserved_by(uint64_t address) const;  // null: nobody
  void set_flags(uint64_t base, unsigned flags);
  void set_sync_memops(uint64_t base, bool on);
  void set_exposed(uint64_t base, std::vector<std::pair<Session*, transport::RegionId>> exposed);

 private:
  // Variables go with their module, and a graph's memory with its graph or a node that frees it,
  // both unannounced: what is allocated in their place replaces them.
  void forget_stale(uint64_t base, size_t bytes);

  mutable std::shared_mutex mutex_;
  struct Reservation {
    size_t bytes = 0;
    Session* session = nullptr;
  };

  std::map<uint64_t, Allocation> allocations_;    // by base
  std::map<uint64_t, Reservation> reservations_;  // by base
  uint64_t next_buffer_id_ = 1;
  std::atomic<bool> any_of_graph_{false};
};

}  // namespace rcuda::client
