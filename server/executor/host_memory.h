// HostMemory: memory of the client that the GPUs can reach, at the address it has in the client.
//
// Over shared memory the client's pages are mapped here and registered with CUDA: one memory,
// nothing to move. Elsewhere the worker has page-locked memory of its own at the same address, a
// shadow, and shadow_copy.h moves the bytes over the Link when a stream gets there. Executor
// thread. expose() blocks for mapping and registration (15 ms for 256 MB).
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include <cuda.h>

#include "common/wire/protocol.h"

namespace rcuda::server {

class ClientResource;
class Executor;

class HostMemory {
 public:
  struct Range {
    uint64_t bytes = 0;
    uint64_t region = 0;
    unsigned flags = 0;       // CU_MEMHOSTREGISTER_*
    bool shadow = false;      // the client's bytes are elsewhere
    bool mapped = false;      // here; not when the client shares this address space
    bool for_graphs = false;  // counted in for_graphs_
    // Of memory that stands for pageable memory: the client's callback, owned by the graphs that
    // use it, and until the first one does by `unclaimed`.
    std::weak_ptr<ClientResource> resource;
    std::shared_ptr<ClientResource> unclaimed;
  };

  explicit HostMemory(Executor& executor);
  ~HostMemory();

  CUresult expose(const wire::HostExposeBody& body);
  CUresult unexpose(const wire::HostUnexposeBody& body);
  // A context is gone, and with it the page-locking of memory that it was the first to have: what
  // the client still has gets it again in the current context.
  void lock_again();

  // The one exposed range that holds [address, address + bytes), or nullptr.
  const Range* find(uint64_t address, uint64_t bytes, uint64_t* base = nullptr) const;
  // The callback of the range that holds the address, for a graph to own; null for other memory.
  std::shared_ptr<ClientResource> claim(uint64_t address);
  // Whether there is memory that copies of a graph cannot simply use.
  bool any_for_graphs() const { return for_graphs_ != 0; }

 private:
  CUresult claim_addresses(uint64_t begin, uint64_t end);  // into kept_, all or none
  CUresult place(uint64_t address, uint64_t bytes, Range* range);
  void take_away(uint64_t address, const Range& range);
  void keep(uint64_t begin, uint64_t end);
  void release(uint64_t address, const Range& range);

  Executor& executor_;
  std::map<uint64_t, Range> ranges_;  // by address; they do not overlap
  // Addresses that nothing else of this process uses, begin to end: those that were closed at its
  // start, and where client memory is or was, for it often comes back there. Inaccessible where
  // none is.
  std::map<uint64_t, uint64_t> kept_;
  size_t for_graphs_ = 0;  // of them, shadows and those with a callback
};

}  // namespace rcuda::server
