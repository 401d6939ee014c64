// PeerFrees: delays the freeing of memory until peer workers have released it. They may be copying
// it, or may have it mapped.
//
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "api/driver_table.h"
#include "server/executor/peers/peer_hub.h"
#include "server/executor/streams/jobs.h"

namespace rcuda::server {

class PeerFrees {
 public:
  // All outlive this object.
  PeerFrees(const api::DriverTable& driver, PeerHub& peers, Jobs& jobs)
      : driver_(driver), peers_(peers), jobs_(jobs) {}

  // Calls `then` on the executor thread when no peer worker uses the memory that the command frees:
  // as a job (Jobs), or before the return if the command frees no memory or the session has no
  // peers.
  void when_released(uint16_t opcode, std::span<const std::byte> body, std::function<void()> then);
  // The same for memory that is freed in stream order, but nothing is delayed: its copies are over
  // when the stream reaches the command, and peer workers may end their mappings later.
  void note_stream_ordered(uint16_t opcode, std::span<const std::byte> body);

 private:
  const api::DriverTable& driver_;
  PeerHub& peers_;
  Jobs& jobs_;
};

}  // namespace rcuda::server
