// What the worker asks of the peer-to-peer engine. Plain values; see p2p/engine.h for their use.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "p2p/device_ops.h"
#include "p2p/pipeline/authentication.h"
#include "p2p/pipeline/shape.h"
#include "p2p/planner/planner.h"

namespace rcuda::p2p {

// Another worker of the same client session, as the client numbers them.
using PeerId = uint32_t;

// One half of a copy between two workers. The client gives both workers their halves under one id.
struct PeerCopy {
  uint64_t id = 0;  // minted by the client, unique among the copies between two workers
  PeerId peer = 0;
  bool outgoing = false;  // this worker holds the source
  int device = 0;         // of this worker
  int peer_device = 0;    // of the peer; outgoing copies only, chooses the plan
  Shape memory;           // on this worker's device
  // The program's stream, if it is one of this worker: the copy starts when the stream gets here,
  // and the stream goes on when the copy is over at both ends.
  std::optional<StreamRef> stream;
  // False: the caller waits for `done` before it puts anything else into the stream, which then
  // need not be held (a held stream notices some microseconds late that it may go on).
  bool hold = true;
  // Outgoing: the peer's half has a stream as well, whose place is to be waited for.
  bool peer_has_stream = false;
  // Called once on the engine's thread when the copy is over, after the stream was let go. Must not
  // block. May be empty.
  std::function<void(const Status&)> done;
};

// How a copy would go.
struct Forecast {
  Plan plan;
  bool measured = false;  // else a probe or a measurement under way may still change the plan
};

struct EngineOptions {
  PlannerOptions planner;
  // Staging memory: per peer an inbox, and an outbox where the medium cannot map the inbox. Their
  // sum over all peers stays below the limit: later peers get less, down to kLeastInboxBytes.
  uint64_t inbox_bytes = 32ull << 20;
  uint64_t staging_limit_bytes = 512ull << 20;
  uint64_t device_inbox_bytes = 16ull << 20;  // in GPU memory, only where GPUDirect may work
  // Measure the legs in the background when a peer is attached and they are not in the cache.
  bool measure = true;
  std::string measurements_path;  // empty: kept in memory only
  std::string host_name;          // for messages and the measurements file
  // How long to look for the next copy before sleeping, if that is longer than the engine's own
  // choice: waking its thread takes longer than a small copy.
  std::chrono::nanoseconds spin{0};
  // A peer has become open, or is lost. On the engine's thread; must not block.
  std::function<void(PeerId)> on_settled;

  static constexpr uint64_t kLeastInboxBytes = 1ull << 20;
};

}  // namespace rcuda::p2p
