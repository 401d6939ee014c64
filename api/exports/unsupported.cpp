#include "api/exports/unsupported.h"

#include <atomic>

#include "common/base/log.h"

namespace rcuda::api {
namespace {
std::atomic<bool> logged[kMaxUnsupported];
}

CUresult unsupported(size_t index) {
  if (!logged[index].exchange(true, std::memory_order_relaxed)) {
    RCUDA_WARN("%s is not supported: the call returns CUDA_ERROR_NOT_SUPPORTED",
               kUnsupportedNames[index]);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace rcuda::api
