// Core: the engine without its thread. A round (step()) handles what arrived, moves every copy on,
// and starts chunks in turn, peer by peer and copy by copy. Whoever drives it calls step() until
// nothing moves, then waits: for a wake, a message, or, when polling() says so, a little while.
// Tests drive it with a simulated clock.
// Not thread-safe: one thread at a time. Nothing blocks but registration, allocation and mapping
// when a peer is attached.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "p2p/pipeline/environment.h"
#include "p2p/pipeline/peer.h"

namespace rcuda::p2p {

class Core {
 public:
  // `ops` outlives the core. `wake` is called from threads of the Links when a transfer ended.
  Core(DeviceOps& ops, EngineOptions options, std::function<uint64_t()> now_ns,
       std::function<void()> wake);
  ~Core();

  // See Engine.
  void attach(PeerId peer, std::unique_ptr<transport::Link> link, const SessionToken& token,
              bool connected);
  void lose(PeerId peer, const Status& why);
  void copy(PeerCopy copy, Order order, const Status& failure);
  // `stream` is where `order` was taken.
  void signal(PeerId peer, uint64_t id, StreamRef stream, Order order, const Status& failure);
  void await(PeerId peer, uint64_t id, StreamRef stream, Order order);
  void release_memory(DeviceAddress base, uint64_t bytes, std::function<void()> done);

  bool step();
  // Whether progress may come about without a wake or a message: device work, or a stream.
  bool polling() const;
  bool busy() const { return environment_.lanes.busy(); }
  // A message or a finished transfer waits for the next round.
  bool pending() const;
  bool idle() const;
  // Whether every connection that was begun is open or lost.
  bool settled() const;
  bool all_open() const;
  Environment& environment() { return environment_; }
  Peer& peer(PeerId id);

 private:
  void save_measurements();

  Environment environment_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by id; few
  struct LastHold {
    uint64_t id = 0;
    PeerId peer = 0;
    bool outgoing = false;
  } last_hold_;  // the copy that held a stream last: what StreamRef::follows speaks of
  size_t turn_ = 0;
  double save_again_us_ = 0;  // not before this time
};

}  // namespace rcuda::p2p
