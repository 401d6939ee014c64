// HostMemory: client memory that the GPUs can reach, at the address that it has in the client.
//
// Over shared memory the client's pages are mapped here and registered with CUDA, so there is one
// memory and nothing to move. Over other media the worker has page-locked memory of its own at the
// same address, a shadow. shadow_copy.h moves the bytes over the Link when a stream reaches a copy.
// Executor thread only. Blocking: expose(), for mapping and registration (15 ms for 256 MB).
// Errors: the CUresults that a program gets. An address that this process uses is
// CUDA_ERROR_INVALID_VALUE.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/client_resources.h"
#include "server/executor/memory/address_range.h"

namespace rcuda::server {

// Logs that bytes between client memory and its shadow were not moved, and returns the error that
// the session reports. Any thread.
CUresult not_moved(const Status& why);

class HostMemory {
 public:
  struct Range {
    uint64_t bytes = 0;
    uint64_t region = 0;
    unsigned flags = 0;       // CU_MEMHOSTREGISTER_*
    bool shadow = false;      // the client's bytes are elsewhere
    bool mapped = false;      // here; not when the client shares this address space
    bool for_graphs = false;  // counted in for_graphs_
    // The client's callback, for memory that stands for pageable memory. The graphs that use the
    // memory own it; until the first one does, `unclaimed` owns it.
    std::weak_ptr<ClientResource> resource;
    std::shared_ptr<ClientResource> unclaimed;
  };

  struct Options {
    // Addresses that this process keeps inaccessible; client memory may be mapped there.
    std::vector<AddressRange> closed;
    // The client lives in this process (tests): its memory is not mapped, only registered.
    bool shared_address_space = false;
  };
  // All outlive this object.
  HostMemory(const api::DriverTable& driver, transport::Link& link, ClientResources& resources,
             const Options& options);
  ~HostMemory();

  CUresult expose(const wire::HostExposeBody& body);
  CUresult unexpose(const wire::HostUnexposeBody& body);
  // To be called when a context is gone: memory that was page-locked first in that context is not
  // any more. Page-locks it again, in the current context.
  void lock_again();

  // The one exposed range that holds [address, address + bytes), or nullptr.
  const Range* find(uint64_t address, uint64_t bytes, uint64_t* base = nullptr) const;
  // The callback of the range that holds the address, for a graph to own; null if there is none.
  std::shared_ptr<ClientResource> claim(uint64_t address);
  // Whether there is memory that copies in graphs need GraphCopies for.
  bool any_for_graphs() const { return for_graphs_ != 0; }

 private:
  CUresult claim_addresses(uint64_t begin, uint64_t end);  // into kept_, all or none
  CUresult place(uint64_t address, uint64_t bytes, Range* range);
  void take_away(uint64_t address, const Range& range);
  void keep(uint64_t begin, uint64_t end);
  void release(uint64_t address, const Range& range);

  const api::DriverTable& driver_;
  transport::Link& link_;
  ClientResources& resources_;
  const bool shared_address_space_;
  std::map<uint64_t, Range> ranges_;  // by address; they do not overlap
  // Addresses that nothing else of this process uses, begin to end: those closed at its start, and
  // those where client memory is or was, because it often comes back there. They are inaccessible
  // where there is no client memory.
  std::map<uint64_t, uint64_t> kept_;
  size_t for_graphs_ = 0;  // the ranges that are shadows or have a callback
};

}  // namespace rcuda::server
