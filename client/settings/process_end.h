// The results of calls at the end of the process, when sessions end while other threads may be
// inside calls.
//
// These calls fail with CUDA_ERROR_DEINITIALIZED, as with a local driver that has shut down, not
// with the error of a lost server. The runtime turns CUDA_ERROR_DEINITIALIZED into
// cudaErrorCudartUnloading. So threads that check errors stop calling the runtime before it is
// destroyed.
#pragma once

#include <atomic>

#include <cuda.h>

namespace rcuda::client {

// Set when the sessions are about to end.
inline std::atomic<bool> process_ends{false};

// Returns the result of an exported function. At the end of the process, the error of a lost
// session becomes CUDA_ERROR_DEINITIALIZED.
inline CUresult final_result(CUresult result) {
  if (result != CUDA_ERROR_DEVICE_UNAVAILABLE) [[likely]]
    return result;
  return process_ends.load(std::memory_order_acquire) ? CUDA_ERROR_DEINITIALIZED : result;
}

}  // namespace rcuda::client
