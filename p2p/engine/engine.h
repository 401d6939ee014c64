// Engine: copies between the GPUs of two workers of one client session, from worker to worker. This
// is the worker's interface to p2p/; the rest is internal.
//
// Use, by a worker:
//   Engine::create(ops, options)                           // once; starts the engine thread
//   engine.attach(peer, make_link(...), token, connected)  // per peer, in the background
//   engine.copy({...})                                     // executor thread; its half of a copy
//   engine.release_memory(...)                             // before device memory is freed
// The client assigns the ids of copies and signals. It sends each worker its half at the place in
// the worker's command stream where the copy belongs, and takes no further part in the copy.
//
// The worker provides:
//  - DeviceOps over its driver table.
//  - A Link to each peer, with the options of link_options(). It is made like the Link to a client,
//    except that the peer's daemon routes the socket.
//  - The 32-byte token that the client gave to both workers.
//  - A call of lose() for a peer that it cannot connect to. Without this call, copies to that peer
//    wait forever. (The Link notices the death of a connected peer.)
//
// While streams of this worker are held, no thread of the process may make a driver call that waits
// for the device (free, register, load code). Such a call blocks other threads in the driver, and
// so it stops the engine's copies.
//
// Threads. One engine thread per worker does all the work, on the NUMA node of the GPUs. For each
// peer, another thread sleeps on the Link while the engine thread sleeps, and does nothing else.
// copy(), signal() and await() are for the executor thread; they call DeviceOps::enter(), queue a
// job, and never block. The other functions may be called from any thread. Callbacks run on the
// engine thread and must not block. The destructor ends all copies with an error and returns when
// no DMA is in progress.
//
// Errors. An error of a copy goes to `done` on both sides, and to the streams of the halves that
// request it (PeerCopy::reports).
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "p2p/api/device_ops.h"
#include "p2p/link/messages.h"
#include "p2p/link/requests.h"
#include "p2p/plan/planner.h"

namespace rcuda::p2p {

class Engine {
 public:
  // `ops` outlives the engine. kOutOfMemory: the engine thread cannot be started.
  static Result<std::unique_ptr<Engine>> create(DeviceOps& ops, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Returns the options for a Link between two engines: `options`, changed where the engine needs
  // other values.
  static transport::LinkOptions link_options(transport::LinkOptions options = {});

  // Gives the engine the connected Link to a peer. `connected`: this side opened it. Copies with
  // the peer, also those requested earlier, begin when both sides have proven that they know the
  // token.
  void attach(PeerId peer, std::unique_ptr<transport::Link> link, const SessionToken& token,
              bool connected);
  // Ends all copies with the peer, with the error `why`. Call it if no connection to the peer is
  // possible, or if the peer must not be used any more.
  void lose(PeerId peer, const Status& why);

  // Queues this worker's half of a copy. The copy takes its place in the stream before copy()
  // returns, so work that the caller queues in the stream afterwards waits for the copy. The stream
  // may be held only if the peer is open or lost, because connecting waits until no stream is held.
  //
  // Errors: `failure`, an error that the caller has already found; kInvalidArgument if device,
  // shape or id is invalid; or the driver's error. After an error the stream is not held, and
  // `done` is not called. The peer's half ends with the same error, unless the id is invalid.
  Status copy(PeerCopy copy, Status failure = {});

  // Events between servers. await() holds its stream until the peer's stream reaches the place of
  // the signal() with the same id. An id is used once. Both return kInvalidArgument if the id is
  // invalid, or the driver's error.
  //
  // `outcome` is the result of a copy before the place of signal(); PeerCopy::done may set it. The
  // engine thread reads it when the stream has reached the place. If signal() has an error of the
  // driver, the held stream gets that error, otherwise the error in `outcome`.
  Status signal(PeerId peer, uint64_t id, StreamRef stream,
                std::shared_ptr<const Status> outcome = nullptr);
  Status await(PeerId peer, uint64_t id, StreamRef stream);

  // Call it before device memory of this worker is freed. `done` runs when no copy uses the memory
  // any more and no connected peer maps it. `done` does not wait for lost peers, which unmap the
  // memory themselves.
  void release_memory(MemoryRelease release);

  // Wakes the engine thread. Call it when a requested pause has begun (DeviceOps::pause()), or
  // shortly before a copy, which should find the thread awake.
  void wake();

  // Returns how a contiguous copy of `bytes` to a device of the peer would be made now. Blocks
  // until the engine thread answers. kUnavailable if the peer is not open yet, kInvalidArgument for
  // an unknown device; for a lost peer, the error of the loss.
  Result<Forecast> plan(PeerId peer, int device, int peer_device, uint64_t bytes);

 private:
  class Runner;
  Engine(DeviceOps& ops, EngineOptions options);

  std::unique_ptr<Runner> runner_;
  DeviceOps& ops_;
  const int device_count_;
};

}  // namespace rcuda::p2p
