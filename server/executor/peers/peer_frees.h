// PeerFrees: keeps memory that a command frees until other workers have let go of it: they may be
// copying it, or may have it mapped.
//
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "api/driver_table.h"
#include "server/executor/streams/jobs.h"
#include "server/peer/peer_hub.h"

namespace rcuda::server {

class PeerFrees {
 public:
  // All outlive this object.
  PeerFrees(const api::DriverTable& driver, PeerHub& peers, Jobs& jobs)
      : driver_(driver), peers_(peers), jobs_(jobs) {}

  // Calls `then` on the executor thread once the memory that the command frees is the session's
  // alone; at once if it is already, or if the command frees none.
  void when_let_go(uint16_t opcode, std::span<const std::byte> body, std::function<void()> then);
  // The same for memory that is freed in stream order. Its copies are over by then, and mappings
  // end by and by, so there is nothing to wait for.
  void note_stream_ordered(uint16_t opcode, std::span<const std::byte> body);

 private:
  const api::DriverTable& driver_;
  PeerHub& peers_;
  Jobs& jobs_;
};

}  // namespace rcuda::server
