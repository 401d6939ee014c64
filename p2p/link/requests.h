// The requests of the worker to the peer-to-peer engine. Plain values; p2p/engine/engine.h
// describes their use.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "p2p/api/device_ops.h"
#include "p2p/link/authentication.h"
#include "p2p/plan/planner.h"
#include "p2p/staging/shape.h"

namespace rcuda::p2p {

// The client's number for the connection with another worker of its session.
using PeerId = uint32_t;

// One half of a copy between two workers. The client gives both workers their halves under one id.
struct PeerCopy {
  uint64_t id = 0;  // assigned by the client; unique among the copies between two workers
  PeerId peer = 0;
  bool outgoing = false;  // this worker holds the source
  int device = 0;         // of this worker
  int peer_device = 0;    // of the peer; for outgoing copies only, to choose the plan
  Shape memory;           // on this worker's device
  // The program's stream, if it belongs to this worker. The copy starts when the stream reaches it,
  // and the stream continues when all bytes have arrived.
  std::optional<StreamRef> stream;
  // Whether the stream is held until the copy is over. False if the caller waits for `done` before
  // it queues anything else in the stream: not holding saves some microseconds, because a held
  // stream notices its release late.
  bool hold = true;
  // Whether this half reports an error of the copy to the stream (DeviceOps::release) in addition
  // to `done`. Both halves have the same error, so the client requests this for at most one half.
  bool reports = true;
  // Outgoing: the peer's half has a stream as well, and the copy waits until that stream reaches
  // it.
  bool peer_has_stream = false;
  // Called once on the engine thread when the copy is over, after the stream has been released.
  // Must not block. May be empty.
  std::function<void(const Status&)> done;
};

// An event of this side. A stream of another worker waits for it (Engine::signal).
struct Signal {
  uint64_t id = 0;
  StreamPlace place =
      StreamPlace::kNone;  // none: the place could not be taken, because of `failure`
  Status failure;
  std::shared_ptr<const Status> outcome;  // result of a copy before the place; may be null
};

// Device memory that is about to be freed.
struct MemoryRelease {
  DeviceAddress base = 0;
  uint64_t bytes = 0;
  std::function<void()> done;
};

// How a copy would be made now (Engine::plan).
struct Forecast {
  Plan plan;
  std::string table;      // Planner::table()
  bool measured = false;  // false: a probe or a measurement may still change the plan
};

struct EngineOptions {
  PlannerOptions planner;
  // The number of peers that the session will have. The staging arena (p2p/link/staging_arena.h) is
  // divided among them.
  uint32_t peers = 1;
  // Staging memory in host memory. Each peer has an inbox of at most `inbox_bytes` and, if it
  // cannot map that inbox, an outbox of the same size. `inboxes_limit_bytes` limits the inboxes of
  // all peers in one arena; their outboxes may have as much again. So up to four peers in each
  // arena have full-size inboxes. With more peers each gets less, but at least kLeastInboxBytes,
  // even if that exceeds the limit.
  uint64_t inbox_bytes = 32ull << 20;
  uint64_t inboxes_limit_bytes = 128ull << 20;
  uint64_t device_inbox_bytes = 16ull << 20;  // in GPU memory; only where GPUDirect may work
  bool measure = true;                        // measure legs in the background
  std::string host_name;                      // for log messages
  // How long the engine thread polls for the next copy before it sleeps. The engine uses its own
  // value if that is longer. Waking the thread takes longer than a small copy.
  std::chrono::nanoseconds spin{0};
  // Called when a peer has become open or is lost. On the engine thread; must not block.
  std::function<void(PeerId)> on_decided;
  // Called on the side that made the connection, once for each peer whose connection is lost, as
  // soon as a copy, a signal or a wait is affected. On the engine thread; must not block.
  std::function<void(PeerId, const Status& why)> on_lost;
  // Called with the plan of an outgoing copy when the copy has ended without an error. On the
  // engine thread; must not block.
  std::function<void(const Plan&)> on_sent;

  static constexpr uint64_t kLeastInboxBytes = 1ull << 20;
};

}  // namespace rcuda::p2p
