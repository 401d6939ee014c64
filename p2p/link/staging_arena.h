// StagingArena: page-locked host memory for a worker's copies with all its peers. The memory is
// allocated and registered with the driver when the first peer needs it, for all peers that the
// session will have, and is cut into equal slices. So one registration serves all peers, and a
// later peer needs none.
//
// A slice is never reused: a lost peer on this host may still have DMA in flight to the pages that
// it has mapped. When no peer has a slice any more, the memory is freed. The next peer starts a new
// arena if, in addition, no peer has a buffer of its own. A peer that maps one slice gets a
// descriptor of the whole arena. That is safe, because all peers of an arena belong to one session,
// and so to one user.
//
// Peers beyond the expected number get buffers of their own from the rest of the limit. Owned by
// the engine's Environment, used only by the engine thread. take() and the destruction of the last
// slice may block in the driver, so the caller must be in a pause (DeviceOps::pause).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "p2p/api/device_ops.h"
#include "p2p/link/requests.h"
#include "p2p/staging/staging.h"

namespace rcuda::p2p {

// Part of a buffer. Keeps the buffer alive.
struct Slice {
  std::shared_ptr<HostBuffer> buffer;  // null: none
  uint64_t offset = 0;                 // within the buffer, and within fd()
  size_t bytes = 0;

  std::byte* data() const { return buffer->data() + offset; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data()); }
  int fd() const { return buffer->fd(); }  // -1: not mappable
};

class StagingArena {
 public:
  // `mappable`: kYes: the arena has an inbox for each peer. kNo: it has an inbox and an outbox for
  // each peer. `options` and `ops` outlive the arena.
  StagingArena(DeviceOps& ops, const EngineOptions& options, Mappable mappable)
      : ops_(ops), options_(options), mappable_(mappable) {}

  // Takes memory for the inbox or the outbox of one more peer: a power of two of at most
  // `most_bytes` and at least kLeastInboxBytes. kOutOfMemory: the limit of staging memory is used
  // up. Otherwise the driver's error.
  Result<Slice> take(uint64_t most_bytes);

  uint64_t bytes() const;  // of all buffers

 private:
  // Returns the number of slices per peer: an inbox, and an outbox if the peer cannot map the
  // inbox.
  uint64_t slices_per_peer() const { return mappable_ == Mappable::kYes ? 1 : 2; }
  Result<std::shared_ptr<HostBuffer>> make_buffer(uint64_t bytes);

  DeviceOps& ops_;
  const EngineOptions& options_;
  const Mappable mappable_;
  std::vector<std::weak_ptr<HostBuffer>> buffers_;
  std::weak_ptr<HostBuffer> arena_;  // the buffer of buffers_ that is cut into equal slices
  uint64_t slice_bytes_ = 0;
  uint64_t used_ = 0;  // bytes of the arena that are handed out
};

}  // namespace rcuda::p2p
