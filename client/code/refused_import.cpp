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
        "cannot import memory of another process: the memory is on a GPU that this program does "
        "not have. In RCUDA_DEVICES, name all GPUs whose memory the processes share, and do not "
        "hide any of them with CUDA_VISIBLE_DEVICES. For leased GPUs, also set RCUDA_LEASE");
  } else {
    RCUDA_WARN(
        "cannot import memory of another process. Probably the other process has ended or has "
        "released the memory, or its GPU is on another node: processes share memory only within a "
        "node (docs/differences.md)");
  }
  return result;
}

}  // namespace rcuda::client
