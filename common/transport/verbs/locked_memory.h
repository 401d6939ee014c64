// The limit on memory that this process may lock. Registering memory for RDMA locks it. Needs no
// rdma-core, because rcuda-doctor also uses this file where rdma-core is missing. Any thread may
// call; nothing blocks.
#pragma once

#include <cstdint>

namespace rcuda::transport {

struct LockedMemoryLimit {
  bool none = false;   // there is no limit, or CAP_IPC_LOCK exempts this process from it
  uint64_t bytes = 0;  // the limit, if there is one
};

LockedMemoryLimit locked_memory_limit();

}  // namespace rcuda::transport
