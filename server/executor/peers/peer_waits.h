// PeerWaits: decides which commands may run while streams are held for peer workers.
//
// While a stream is held, a command must wait if a driver may wait for the device in it
// (allocations; loading code, also by the first launch of a kernel; ...). During that call the
// driver would block the engine, which has to end the copy that holds the stream.
// Commands that only queue work may run, but only a bounded number of them: the queues behind a
// held stream are finite, and the streams of a device share few of them. Work waiting in all queues
// would block the copies that it waits for. For the same reason no stream is held while too many
// streams have work, or before the connection to the peer is made.
// No two workers wait for each other: a command waits here only for copies whose two halves the
// client sent before it (client/copy/peer.cpp; the proof is in p2p/api/pause.h).
//
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "api/command_traits.h"
#include "common/wire/protocol.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/device_waits.h"
#include "server/executor/peers/peer_hub.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/idle.h"

namespace rcuda::server {

class PeerWaits {
 public:
  // Calls the may_wait() of a command's handler (WhileHeld::kAsks).
  using MayWait =
      std::function<bool(const wire::CommandHeader& header, std::span<const std::byte> body)>;

  // All outlive this object. `most_streams`: SessionResources::most_streams.
  PeerWaits(PeerHub& peers, SessionObjects& objects, const Completions& completions,
            IdleCheck& idle, DeviceWaits& device_waits, size_t most_streams, MayWait may_wait)
      : peers_(peers),
        objects_(objects),
        completions_(completions),
        idle_(idle),
        device_waits_(device_waits),
        most_streams_(most_streams),
        may_wait_(std::move(may_wait)) {}

  // Whether the command may be carried out now.
  bool may_run(std::span<const std::byte> frame);
  // To be called between two commands: makes the calls that wait until no stream is held
  // (DeviceWaits), or grants a pause that the engine wants. Returns whether it did anything.
  bool run_freed();
  // Whether may_run() refused the last command because too many streams have work. The caller must
  // try it again.
  bool crowded() const { return crowded_; }

 private:
  bool begin_pause();
  // The command's trait `while_held`; for kAsks, the decision of its handler's may_wait().
  api::WhileHeld effect_of(const api::CommandTraits& traits, const wire::CommandHeader& header,
                           std::span<const std::byte> body);
  bool has_room(wire::ObjectId context);

  PeerHub& peers_;
  SessionObjects& objects_;
  const Completions& completions_;
  IdleCheck& idle_;
  DeviceWaits& device_waits_;
  const size_t most_streams_;
  const MayWait may_wait_;
  int behind_ = 0;  // commands allowed to run since a stream was first held
  bool crowded_ = false;
};

}  // namespace rcuda::server
