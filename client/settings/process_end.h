// The end of the process: sessions end while other threads may be inside calls.
//
// These calls fail as in a local driver that has been shut down, with CUDA_ERROR_DEINITIALIZED, not
// as after the loss of a server. The runtime knows that error (cudaErrorCudartUnloading), and so
// threads that look at errors stop calling it before it is destroyed, too.
#pragma once

#include <atomic>

#include <cuda.h>

namespace rcuda::client {

// Set when the sessions are about to end.
inline std::atomic<bool> process_ends{false};

// The result of an exported function.
inline CUresult final_result(CUresult result) {
  if (result != CUDA_ERROR_DEVICE_UNAVAILABLE) [[likely]]
    return result;
  return process_ends.load(std::memory_order_acquire) ? CUDA_ERROR_DEINITIALIZED : result;
}

}  // namespace rcuda::client
