// Path: how chunks reach the peer. A path decides where the copy-out puts a chunk and how the chunk
// is transported.
//
//   shm     the copy-out writes straight into the peer's pinned inbox, which is mapped here; the
//           bytes need no transport
//   wire    the copy-out writes into this side's outbox; a write of the Link (with an immediate, if
//           the medium has immediates) moves the chunk to the peer's inbox, over tcp or verbs. With
//           GPUDirect, outbox and inbox are in GPU memory
//   direct  no copy-out: a write of the Link moves the bytes from the source to the destination
//
// Copies share a path, and paths share arenas (two GPUs of a sender write into one inbox).
// reserve() limits the bytes in flight. Arenas and Link outlive the path. Only the engine thread
// calls a path. Nothing blocks. The `done` function of transfer() runs on a thread of the Link, or
// before transfer() returns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/transport/link.h"
#include "p2p/staging/arena.h"

namespace rcuda::p2p {

// The place where the bytes of a chunk arrive at the receiver. A field of ChunkMessage.
enum class Where : uint32_t {
  kHostInbox = 1,    // in the receiver's inbox in page-locked host memory
  kDeviceInbox = 2,  // in the receiver's inbox in GPU memory
  kTarget = 3,       // at their destination (registered)
};

// Staging memory for one chunk at both ends.
struct Slot {
  uint64_t local = 0;   // address where copy-out writes, or (direct) of the source bytes
  uint64_t remote = 0;  // offset in the receiver's inbox or target
  uint64_t bytes = 0;
};

struct Path {
  // Makes a shm path. The peer's inbox is mapped at `base`.
  static Path shared(uint64_t base, Arena& inbox) {
    return {.base = base, .bytes = inbox.bytes(), .inbox = &inbox};
  }
  // Makes a wire path, from this side's outbox at `base` to the region of the peer's inbox.
  static Path wire(transport::Link& link, Where where, uint64_t base, Arena& outbox,
                   transport::RegionId region, Arena& inbox) {
    const uint64_t bytes = std::min(outbox.bytes(), inbox.bytes());
    return {where, base, bytes, &outbox, &inbox, &link, region};
  }
  // Makes a direct path for one copy, from the source at `base` to the region of the destination.
  static Path direct(transport::Link& link, uint64_t base, uint64_t bytes,
                     transport::RegionId region) {
    return {Where::kTarget, base, bytes, nullptr, nullptr, &link, region};
  }

  Where where = Where::kHostInbox;
  uint64_t base = 0;
  uint64_t bytes = 0;       // the most that all slots of reserve() take together
  Arena* outbox = nullptr;  // null if the path has no outbox; likewise `inbox`
  Arena* inbox = nullptr;
  transport::Link* link = nullptr;  // null: the copy-out itself reaches the peer
  transport::RegionId region = transport::RegionId::kNone;

  // Whether chunks are in host memory between copy-out and copy-in.
  bool in_host_memory() const { return where == Where::kHostInbox; }
  // Whether a chunk must be copied out before transfer().
  bool copies_out() const { return where != Where::kTarget; }
  // Whether transfer() is needed.
  bool needs_transfer() const { return link != nullptr; }
  // Whether a chunk transferred with an immediate reports its own arrival to the receiver. Such a
  // chunk can be announced before it has arrived.
  bool tells_arrival() const { return outbox && link->traits().has_immediates; }

  // Reserves a slot for the chunk [offset, offset + bytes) of a copy. nullopt: no slot is free now.
  std::optional<Slot> reserve(uint64_t offset, uint64_t bytes);
  void release(const Slot& slot);
  // Starts the transfer of a chunk. `immediate`: 0 for none.
  void transfer(const Slot& slot, uint32_t immediate, transport::Company company,
                transport::TransferDone done);
};

}  // namespace rcuda::p2p
