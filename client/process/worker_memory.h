// Records memory at addresses that a worker has returned. The client does not trust these addresses
// (docs/security.md).
//
// Threads: any. Nothing blocks.
#pragma once

#include <cuda.h>

#include "client/process/registry.h"

namespace rcuda::client {

// Adds memory of a session to the registry. If the range is not inside of the session's device
// addresses, ends the session and returns kSessionLost. If memory there is already in use, returns
// CUDA_ERROR_UNKNOWN. In both cases nothing is added, and an error is logged.
CUresult record_memory(Allocation allocation);

}  // namespace rcuda::client
