// The session's dealings with its other workers, tied to its executor. The commands about them are
// in custom_peer.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "api/stubs/traits.h"
#include "common/wire/protocol.h"
#include "server/peer/peer_hub.h"

namespace rcuda::server {

class Executor;

std::unique_ptr<PeerHub> make_peers(Executor& executor);

// Whether a command may be carried out now. While streams are held for other workers, commands for
// which a driver may wait for the device (allocations, loading code, which the first launch of a
// kernel does, ...) must wait, or the driver would keep the engine from ending what they wait for;
// and of those that queue work not too many may go on, as queues behind a held stream are finite
// and a device's streams share few of them: what waits in all of them is in the way of the copies
// that it waits for. So no stream is held either while too many have work, nor before the
// connection stands. Who waits here waits for copies whose halves were all sent before it
// (client/memory/peer_copy.cpp), so that no two workers wait for one another.
class PeerWaits {
 public:
  explicit PeerWaits(Executor& executor) : executor_(executor) {}
  bool may_run(std::span<const std::byte> frame);
  // Runs `job`, which may wait for the device, as soon as no stream is held; no further one is held
  // until then.
  void when_free(std::function<void()> job);
  // Between two commands: runs such jobs, or grants the engine a pause that it wants. True if there
  // was anything.
  bool run_freed();
  // The last command waits for streams to have done their work: it must be tried again.
  bool crowded() const { return crowded_; }

 private:
  bool begin_pause();
  // What the table says of the command, or what its handler's may_wait() makes of kAsks.
  api::WhileHeld effect_of(const api::CommandTraits& traits, const wire::CommandHeader& header,
                           std::span<const std::byte> body);
  bool has_room(wire::ObjectId context);

  Executor& executor_;
  int behind_ = 0;  // commands carried out since a stream is held
  bool crowded_ = false;
  std::vector<std::function<void()>> when_free_;
};

// Whether the command frees device memory that other workers may be copying or have mapped, and may
// run only when they have let go; `then` runs on the executor thread, at once where nobody does.
void when_peers_let_go(Executor& executor, uint16_t opcode, std::span<const std::byte> body,
                       std::function<void()> then);
// The same for memory freed in stream order: its copies are over by then, mappings go by and by.
void note_stream_ordered_free(Executor& executor, uint16_t opcode, std::span<const std::byte> body);

}  // namespace rcuda::server
