#include "client/trace/thrown.h"

#include <new>
#include <stdexcept>

#include "common/base/log.h"

namespace rcuda::client {

CUresult thrown(const char* function, const std::exception& exception) noexcept {
  // Not logged: logging needs memory too, and programs expect this error.
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr ||
      dynamic_cast<const std::length_error*>(&exception) != nullptr) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  RCUDA_ERROR("%s failed: %s; please report it", function, exception.what());
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace rcuda::client
