// Engine: copies between the GPUs of two workers of one client session, worker to worker. The
// worker's door to p2p/; everything behind it is p2p's own business.
//
// Use, by a worker:
//   Engine engine(ops, options);                      // once; starts the engine thread
//   engine.attach(peer, make_link(...), token, connected)   // per peer, in the background
//   engine.copy({...})                                // executor thread, for its half of a copy
//   engine.release_memory(...)                        // before device memory is freed
// The client mints copy and signal ids, and sends each worker its half at the place in the worker's
// command stream where the copy belongs; then it forgets about it.
//
// What the worker must provide: DeviceOps over its driver table; a Link to each peer, made with
// link_options() as for a client, with the peers' daemons routing the socket;
// the 32-byte token the client gave both; and lose() for a peer it cannot connect to, or copies to
// it wait for ever. A peer's death is noticed by its Link.
//
// While streams of this worker are held, neither the engine nor anybody else in the process may
// make a driver call that waits for the device (freeing, registering, loading code): such a call
// keeps other threads out of the driver, and the engine's copies with them.
//
// Threads. One engine thread per worker does all the work, on the NUMA node of the GPUs; per peer a
// thread sleeps on the Link while the engine thread sleeps, and does nothing else. copy(), signal()
// and await() are for the executor thread: they call DeviceOps::enter() and queue, and never block.
// The other functions may be called from any thread. Callbacks run on the engine thread and must
// not block. The destructor ends all copies with an error and returns when no DMA is under way.
//
// Errors. A copy's error goes to `done` on both sides, and to the streams of the halves that ask for
// it (DeviceOps::release).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "p2p/device_ops.h"
#include "p2p/pipeline/messages.h"
#include "p2p/pipeline/requests.h"
#include "p2p/planner/measurements.h"

namespace rcuda::p2p {

class Engine {
 public:
  // `ops` outlives the engine. kOutOfMemory: its thread cannot be started.
  static Result<std::unique_ptr<Engine>> create(DeviceOps& ops, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // What a Link between two engines needs; `options` for the rest.
  static transport::LinkOptions link_options(transport::LinkOptions options = {});

  // The Link to a peer stands; `connected`: this side opened it. Copies to the peer, which may have
  // been asked for already, begin when both sides have proven that they know the token.
  void attach(PeerId peer, std::unique_ptr<transport::Link> link, const SessionToken& token,
              bool connected);
  // The peer cannot be connected to, or is not to be used any more: its copies end with `why`.
  void lose(PeerId peer, const Status& why);

  // This worker's half of a copy. Takes its place in the stream before returning, so what the
  // caller puts into the stream afterwards waits for it. The stream may be held only if the peer is
  // open or lost: connecting waits until none is. kInvalidArgument for what can be seen to
  // be wrong at once (device, shape, id), or `failure`, which the caller saw; then nothing was
  // queued, the stream is free, and the peer is told.
  Status copy(PeerCopy copy, Status failure = {});

  // Cross-server events. signal(): when `place` is reached, the peer's await() of the same id lets
  // its stream go on. `id` is used once. kInvalidArgument or the driver's error at once, which the
  // peer's stream gets as well.
  Status signal(PeerId peer, uint64_t id, StreamRef place);
  Status await(PeerId peer, uint64_t id, StreamRef stream);

  // Device memory of this worker is about to be freed: `done` runs when no peer maps it any more,
  // but for those that are lost, which cannot be asked and unmap it by themselves.
  void release_memory(DeviceAddress base, uint64_t bytes, std::function<void()> done);

  // From any thread: a pause that was asked for has begun (DeviceOps::pause()), or a copy may be
  // asked for soon, which finds the engine's thread awake then.
  void wake();

  // Blocks until every attached peer is open or lost, or the timeout passed; then whether all are
  // open. For tests and tools.
  bool wait_until_open(std::chrono::milliseconds timeout);
  // What has been measured so far (a copy).
  Measurements measurements();
  // How a plain copy of so many bytes to a peer's device would go now. Blocks for the engine
  // thread. kUnavailable while the peer is not open.
  Result<Forecast> plan(PeerId peer, int device, int peer_device, uint64_t bytes);

 private:
  class Runner;
  Engine(DeviceOps& ops, EngineOptions options);

  std::unique_ptr<Runner> runner_;
  DeviceOps& ops_;
  const int device_count_;
};

}  // namespace rcuda::p2p
