// Core: the engine without its thread. A round (run_round()) handles everything that has arrived,
// advances every copy, and starts chunks in turn, peer by peer and copy by copy. The caller repeats
// run_round() until it returns false, then waits for a wake or a message; if polling() is true, it
// waits only briefly. Tests drive a Core with a simulated clock.
//
// Not thread-safe: one thread at a time. A round blocks only to register, allocate, map or free
// memory, to prove GPUDirect, and in Link::put while the send queue is full.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "p2p/engine/peer.h"
#include "p2p/link/environment.h"

namespace rcuda::p2p {

class Core {
 public:
  // `ops` outlives the core. Threads of the Links call `wake` when a transfer has ended or bytes
  // with an immediate have arrived.
  Core(DeviceOps& ops, EngineOptions options, std::function<uint64_t()> now_ns,
       std::function<void()> wake);
  ~Core();

  // The parts of Engine::copy() and Engine::release_memory() that run on the engine thread.
  // `failure`: ok, or the error with which the half ends.
  void copy(PeerCopy copy, StreamPlace place, const Status& failure);
  void release_memory(MemoryRelease release);

  bool run_round();
  // Whether run_round() must be called again soon, because something progresses without a wake or a
  // message: work of a device, a stream that must reach a place, a requested pause, or messages
  // that wait for room in a ring.
  bool polling() const;
  // Whether a message or a finished transfer waits for the next round.
  bool pending() const;
  Environment& environment() { return environment_; }
  Peer& peer(PeerId id);

 private:
  bool in_use(const MemoryRelease& memory) const;
  bool release_unused();
  void unmap(MemoryRelease release);

  Environment environment_;
  std::vector<std::unique_ptr<Peer>> peers_;  // few, so a search by id is fast
  std::list<MemoryRelease> releases_;         // wait for copies that use the memory
  struct LastHold {
    uint64_t id = 0;
    PeerId peer = 0;
    bool outgoing = false;
  } last_hold_;  // the last copy that held a stream, for StreamRef::follows
  size_t turn_ = 0;
};

}  // namespace rcuda::p2p
