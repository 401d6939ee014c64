// PeerWaits: says which commands may run while streams are held for other workers.
//
// While a stream is held, a command must wait if a driver may wait for the device in it
// (allocations, loading code, which the first launch of a kernel does, ...): the driver would keep
// the engine from ending the copy that holds the stream. Of the commands that queue work only a
// bounded number may run, because the queues behind a held stream are finite and the streams of a
// device share few of them: work that waits in all queues is in the way of the copies that it waits
// for. For the same reason no stream is held while too many have work, nor before the connection to
// the peer stands.
// No two workers wait for each other: what a command waits for here are copies whose halves the
// client sent before it, on both sides (client/memory/copy/peer.cpp).
//
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "api/stubs/traits.h"
#include "common/wire/protocol.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/idle.h"
#include "server/peer/peer_hub.h"

namespace rcuda::server {

class PeerWaits {
 public:
  // What a handler's may_wait() says (WhileHeld::kAsks).
  using MayWait =
      std::function<bool(const wire::CommandHeader& header, std::span<const std::byte> body)>;

  // All outlive this object. `most_streams`: SessionResources::most_streams.
  PeerWaits(PeerHub& peers, SessionObjects& objects, const Completions& completions,
            IdleCheck& idle, size_t most_streams, MayWait may_wait)
      : peers_(peers),
        objects_(objects),
        completions_(completions),
        idle_(idle),
        most_streams_(most_streams),
        may_wait_(std::move(may_wait)) {}

  // Whether the command may be carried out now.
  bool may_run(std::span<const std::byte> frame);
  // Runs `job`, which may wait for the device, as soon as no stream is held. Until then no further
  // stream is held.
  void when_free(std::function<void()> job);
  // To be called between two commands: runs such jobs, or grants a pause that the engine wants.
  // Returns whether there was anything to do.
  bool run_freed();
  // Whether the last command has to wait until streams have done their work. It must be tried
  // again.
  bool crowded() const { return crowded_; }

 private:
  bool begin_pause();
  // What the table says of the command; for kAsks, what its handler's may_wait() says.
  api::WhileHeld effect_of(const api::CommandTraits& traits, const wire::CommandHeader& header,
                           std::span<const std::byte> body);
  bool has_room(wire::ObjectId context);

  PeerHub& peers_;
  SessionObjects& objects_;
  const Completions& completions_;
  IdleCheck& idle_;
  const size_t most_streams_;
  const MayWait may_wait_;
  int behind_ = 0;  // commands carried out since a stream was first held
  bool crowded_ = false;
  std::vector<std::function<void()>> when_free_;
};

}  // namespace rcuda::server
