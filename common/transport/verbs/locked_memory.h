// How much memory this process may lock, which is what registering memory for RDMA does. Needs no
// rdma-core: rcuda-doctor asks too. Any thread may call; nothing blocks.
#pragma once

#include <cstdint>

namespace rcuda::transport {

struct LockedMemoryLimit {
  bool none = false;   // no limit is set, or CAP_IPC_LOCK exempts this process from it
  uint64_t bytes = 0;  // otherwise
};

LockedMemoryLimit locked_memory_limit();

}  // namespace rcuda::transport
