// Moves bytes from one registration to another of the same adapter, over a queue pair that is
// connected to itself. This proves that the adapter reaches GPU memory. Blocks until the bytes have
// arrived or `deadline` has passed. Each call makes its own queue pair, because calls are rare.
#pragma once

#include <chrono>
#include <cstddef>

#include "common/base/status.h"
#include "common/transport/verbs/device.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

struct Span {
  uint64_t address = 0;
  const ibv_mr* mr = nullptr;
};

// `id` and `local` give the port and the GID.
Status loop_back(ibv_pd* pd, const rdma_cm_id& id, const Address& local, Span to, Span from,
                 size_t bytes, std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::transport::verbs
