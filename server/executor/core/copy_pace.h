// CopyPace: delays copies between a device and the client or another server if an allowance limits
// their bandwidth (server/quota).
//
// A copy of any size starts, unless earlier copies have exceeded the allowance. If they have, the
// copy and the commands after it wait, and the executor thread does its other work.
// Copies between the client and this server, and between two servers, count. The copies of a graph
// count at each launch. Copies inside a server and accesses of kernels to client memory do not
// count. Of the bytes that keep mirrors equal (mirrors.h), only those in copy commands of the
// client count.
//
// Executor thread only. Nothing blocks. Times are nanoseconds of the monotonic clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/wire/protocol.h"
#include "server/executor/graphs/graph_copies.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/objects/objects.h"
#include "server/quota/quota.h"

namespace rcuda::server {

class CopyPace {
 public:
  // All outlive this object.
  CopyPace(Quota& quota, const HostMemory& host_memory, SessionObjects& objects,
           const GraphCopies& graph_copies)
      : quota_(quota),
        host_memory_(host_memory),
        objects_(objects),
        graph_copies_(graph_copies),
        limits_(quota.limits(&Allowance::bandwidth)) {}

  bool limits() const { return limits_; }
  // Whether the command may be carried out now. If not, the caller asks again at until(). The
  // command may then have to wait again, because other sessions with the same budgets may copy
  // meanwhile.
  bool may_start(std::span<const std::byte> frame, uint64_t now);
  uint64_t until() const { return until_; }
  // To be called after the handler has accepted a command with copies.
  void book(uint16_t opcode, std::span<const std::byte> body, uint64_t now);

  // The bytes of the command that count: those that it moves between the client and a device, or
  // between another server and a device. 0 for other commands, and for malformed commands.
  uint64_t bytes_of(uint16_t opcode, std::span<const std::byte> body) const;

 private:
  uint64_t bytes_of_launch(std::span<const std::byte> body) const;
  bool is_clients(uint64_t address) const { return host_memory_.find(address, 1) != nullptr; }

  Quota& quota_;
  const HostMemory& host_memory_;
  SessionObjects& objects_;
  const GraphCopies& graph_copies_;
  const bool limits_;
  uint64_t until_ = 0;
};

}  // namespace rcuda::server
