#include "client/code/refused_import.h"

#include <atomic>

#include "common/base/log.h"

namespace rcuda::client {

CUresult explain_import(CUresult result) {
  static std::atomic<bool> told{false};
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED || told.exchange(true)) {
    return result;
  }
  if (result == CUDA_ERROR_INVALID_DEVICE) {
    RCUDA_WARN(
        "memory of another process could not be imported: it is on a GPU that this session does "
        "not have. Name all GPUs whose memory the processes share in RCUDA_DEVICES, under a lease "
        "that has them if they are leased, and let CUDA_VISIBLE_DEVICES hide none of them");
  } else {
    RCUDA_WARN(
        "memory of another process could not be imported: the server of this GPU does not know "
        "it. The other process has ended, or its GPU is on another node: processes share memory "
        "within a node only (docs/architecture.md, \"What differs from a local driver\")");
  }
  return result;
}

}  // namespace rcuda::client
