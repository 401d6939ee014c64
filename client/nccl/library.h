// The NCCL of the program's servers, and the place of a call: its worker and context.
//
// Threads: any. Blocking: open_library() at the first call, while it connects to the servers and
// these load their NCCL; find_place() when it makes a context.
#pragma once

#include <cuda.h>

#include "client/session/route.h"
#include "common/base/status.h"
#include "common/cuda/cuda_result.h"
#include "common/nccl/nccl_api.h"

namespace rcuda::client::nccl {

// Returns the ncclResult_t for an error of the client or of a worker.
int result_of(CUresult error);

// Connects to the servers and makes each worker load its NCCL. An error names the server without
// NCCL, and the reason. Later calls return the first result, unless `again` is set.
Status open_library(bool again = false);
// Returns the lowest version of the servers' libraries; 0 before open_library() has succeeded.
int library_version();
// Returns the version of the session's library. Call it after open_library() has succeeded.
int library_version(const Session& session);
// Whether any operation of the session's NCCL may wait for other ranks, even on existing
// connections: some versions connect ranks at the first use of an algorithm, or make ranks wait for
// each other in a launch.
bool operations_may_wait(const Session& session);

// Returns the route of the current context. As in the CUDA runtime, a thread without a context gets
// the primary context of device 0.
CudaResult<Route> find_place();

}  // namespace rcuda::client::nccl
