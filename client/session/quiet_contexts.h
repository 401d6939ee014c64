// Contexts in which nothing is under way: a synchronisation that would find nothing to wait for
// costs no round trip.
//
// Commands of a session are numbered from 1 as they are sent. A context is quiet when a
// synchronisation of it has been waited for, and no command sent since has queued anything, in
// whatever context. Threads: the caller's lock, under which the numbers are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/protocol.h"

namespace rcuda::client {

class QuietContexts {
 public:
  // What was waited for. The default stream waits for all streams of its context that block, so it
  // is quiet where the context is.
  enum class Scope { kContext, kDefaultStream };

  void sent(uint64_t number, uint16_t opcode, std::span<const std::byte> body);
  // A synchronisation that was sent when there had been `before` commands has been waited for; now
  // there have been `commands`.
  void waited(Scope scope, wire::ObjectId context, uint64_t before, uint64_t commands);
  bool is_quiet(Scope scope, wire::ObjectId context) const;

 private:
  uint64_t last_queued_ = 0;  // the last command that may have queued something
  // As they are while that one stays the last.
  uint64_t quiet_since_ = 0;
  std::vector<wire::ObjectId> contexts_;
  std::vector<wire::ObjectId> default_streams_;
};

}  // namespace rcuda::client
