// NcclSettings: a worker's settings and callbacks for NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <sys/socket.h>

namespace rcuda::server {

struct NcclSettings {
  std::string library = "auto";  // as for load_nccl()
  // Why NCCL must encrypt its connections, with the remedy; empty: it need not.
  std::string needs_encryption;
  // The line that the worker writes to the program's stderr if a communicator has ranks in other
  // sessions; empty: no line.
  std::string apart;
  // NCCL_HOSTID, unless the environment sets it: equal in workers that can open each other's GPUs.
  // Empty: NCCL chooses.
  std::string host_id;
  // Whether NCCL may connect to an address that a unique id names.
  std::function<bool(const sockaddr&)> may_connect = [](const sockaddr&) { return true; };
  // Called on the executor thread when the session gets a rank of a communicator (`joins` is true),
  // and when it no longer has this rank. `tag`: NcclCommunicator::tag. If another worker with a
  // rank of this communicator dies, Nccl::lose() gets the tag.
  std::function<void(uint64_t tag, bool joins)> note_rank = [](uint64_t, bool) {};
};

}  // namespace rcuda::server
