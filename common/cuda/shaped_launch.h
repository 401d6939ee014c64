// The launch settings of a function in the launch interface of CUDA 3. cuFuncSetBlockShape,
// cuFuncSetSharedSize and cuParamSet* set them, cuLaunch and cuLaunchGrid* use them. cuLaunchKernel
// ignores them.
//
// Any thread. Errors are those of driver 580 on an H100.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include <cuda.h>

#include "common/base/mutex.h"

namespace rcuda::cuda {

class ShapedLaunch {
 public:
  // The values that a launch uses.
  struct Settings {
    std::array<unsigned, 3> block = {1, 1, 1};
    unsigned shared_bytes = 0;
    std::vector<std::byte> parameters;
  };

  Settings settings() const {
    MutexLock lock(mutex_);
    Settings now = settings_;
    now.parameters = parameters_;
    now.parameters.resize(size_);
    return now;
  }

  void set_block(const std::array<unsigned, 3>& block) {
    MutexLock lock(mutex_);
    settings_.block = block;
  }

  void set_shared_bytes(unsigned bytes) {
    MutexLock lock(mutex_);
    settings_.shared_bytes = bytes;
  }

  CUresult set_size(unsigned bytes) {
    if (bytes > kMaxBytes) return CUDA_ERROR_INVALID_VALUE;
    MutexLock lock(mutex_);
    size_ = bytes;
    return CUDA_SUCCESS;
  }

  CUresult set_parameter(int offset, const void* value, size_t bytes) {
    if (offset < 0 || !value || static_cast<size_t>(offset) > kMaxBytes ||
        bytes > kMaxBytes - static_cast<size_t>(offset)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    MutexLock lock(mutex_);
    const size_t first = static_cast<size_t>(offset);
    if (parameters_.size() < first + bytes) parameters_.resize(first + bytes);
    std::memcpy(parameters_.data() + first, value, bytes);
    return CUDA_SUCCESS;
  }

 private:
  static constexpr size_t kMaxBytes = 32764;

  mutable Mutex mutex_;
  Settings settings_ RCUDA_GUARDED_BY(mutex_);  // without `parameters`: see parameters_
  std::vector<std::byte> parameters_ RCUDA_GUARDED_BY(mutex_);
  size_t size_ RCUDA_GUARDED_BY(mutex_) = 0;
};

}  // namespace rcuda::cuda
