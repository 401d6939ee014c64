// HostMemory: client memory that the GPUs can reach, at the address that it has in the client.
//
// Over shared memory the client's pages are mapped here and registered with CUDA, so both sides
// share the memory and no bytes move. Over other media the worker has its own page-locked memory at
// the same address, a shadow. For each copy, Transfers (transfers.h) moves the bytes over the Link.
// Executor thread only. Blocking: expose(), for mapping and registration (15 ms for 256 MB);
// unexpose(), until neither the driver nor the Link uses the memory.
// Errors: the CUresults that a program gets: CUDA_ERROR_OUT_OF_MEMORY beyond the session's quota of
// host memory, CUDA_ERROR_INVALID_VALUE for an address that this process already uses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/address_space.h"
#include "common/transport/arrivals.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/client_resources.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

// Logs that a transfer of client memory has failed, and returns the error that the session reports.
// Any thread.
CUresult not_moved(const Status& why);
// Moves bytes between `local` and a region of the client, and waits for the transfer. Any thread,
// except the Link's.
Status move_now(transport::Link& link, bool to_client, transport::RegionId region, uint64_t offset,
                void* local, uint64_t bytes);

class HostMemory {
 public:
  struct Range {
    uint64_t bytes = 0;
    uint64_t region = 0;
    unsigned flags = 0;   // CU_MEMHOSTREGISTER_*
    bool shadow = false;  // not the client's pages, but a shadow of them
    // The region through which the client writes into the shadow (transport::Arrivals). kNone: the
    // client does not write into it.
    transport::RegionId shadow_region = transport::RegionId::kNone;
    bool mapped = false;      // set by place(); false if the client shares this address space
    bool for_graphs = false;  // counted in for_graphs_
    // The client's callback, if the memory is a stand-in for pageable memory
    // (client/copy/stand_in.h). The graphs that use the memory own the callback; until a graph
    // claims it, `unclaimed` owns it.
    std::weak_ptr<ClientResource> resource;
    std::shared_ptr<ClientResource> unclaimed;
  };

  struct Options {
    // Addresses that this process keeps inaccessible; client memory may be mapped there.
    std::vector<AddressRange> closed;
    // The client is in this process (tests): its memory is not mapped, only registered.
    bool shared_address_space = false;
    // Whether the client may write into shadows without a request of the worker, if the medium
    // allows it.
    bool client_writes = true;
  };
  // All outlive this object.
  HostMemory(const api::DriverTable& driver, transport::Link& link, transport::Arrivals& arrivals,
             ClientResources& resources, MemoryMeter& meter, const Options& options);
  ~HostMemory();

  CUresult expose(const wire::HostExposeBody& body);
  CUresult unexpose(const wire::HostUnexposeBody& body);
  // To be called after a context was destroyed or reset, which unlocks the memory that was first
  // page-locked in it. Page-locks this memory again, in the current context.
  void lock_again();

  // The exposed range that contains [address, address + bytes), or nullptr.
  const Range* find(uint64_t address, uint64_t bytes, uint64_t* base = nullptr) const;
  // Passes the callback of the range that contains the address to the caller, which gives it to a
  // graph. Returns null if there is no such range or it has no callback.
  std::shared_ptr<ClientResource> claim(uint64_t address);
  // Whether there is memory whose copies in graphs need GraphCopies.
  bool any_for_graphs() const { return for_graphs_ != 0; }

 private:
  // Reserves the addresses that are not in kept_, and adds them to kept_. After an error it adds
  // none.
  CUresult claim_addresses(uint64_t begin, uint64_t end);
  CUresult lock(const wire::HostExposeBody& body, Range* range);
  CUresult place(uint64_t address, uint64_t bytes, Range* range);
  CUresult open_to_writes(uint64_t address, Range* range);
  void take_away(uint64_t address, const Range& range);
  void keep(uint64_t begin, uint64_t end);
  void release(uint64_t address, const Range& range);

  const api::DriverTable& driver_;
  transport::Link& link_;
  transport::Arrivals& arrivals_;
  ClientResources& resources_;
  MemoryMeter& meter_;
  const bool shared_address_space_;
  const bool client_writes_;
  std::map<uint64_t, Range> ranges_;  // by address; they do not overlap
  // Addresses that nothing else in this process uses, begin to end: those of Options::closed, and
  // those where client memory is or was, because a client often exposes memory there again. They
  // are inaccessible where no client memory is exposed.
  std::map<uint64_t, uint64_t> kept_;
  size_t for_graphs_ = 0;  // number of ranges that are shadows or have a callback
};

}  // namespace rcuda::server
