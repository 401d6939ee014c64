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

// The number that the client gave the connection with another worker of its session.
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
  // Whether the stream reports an error of the copy as well as `done` (DeviceOps::release). The two
  // halves have the same error, so the client asks one of them.
  bool stream_gets_error = true;
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
  // How many peers the session will have. The staging arena (p2p/pipeline/staging_arena.h) is
  // divided among so many.
  uint32_t peers = 1;
  // Staging memory in host memory: each peer has an inbox of at most `inbox_bytes`, and an outbox
  // of the same size where it cannot map that inbox. The limit is that of the inboxes of one arena,
  // of all peers together; their outboxes may take as much again. So four peers of either kind have
  // whole inboxes. With more peers each gets less, down to kLeastInboxBytes, which they get
  // whatever the limit.
  uint64_t inbox_bytes = 32ull << 20;
  uint64_t inboxes_limit_bytes = 128ull << 20;
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
