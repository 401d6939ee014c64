// CudaResult<T>: a value, or the CUresult of the failure. RCUDA_ASSIGN_OR_RETURN
// (common/base/status.h) takes it, too.
#pragma once

#include <cassert>
#include <optional>
#include <utility>

#include <cuda.h>

#include "common/base/status.h"

namespace rcuda {

template <typename T>
class [[nodiscard]] CudaResult {
 public:
  // NOLINTBEGIN(google-explicit-constructor): `return error;` and `return value;` work
  CudaResult(CUresult error) : result_(error) { assert(error != CUDA_SUCCESS); }
  CudaResult(T value) : value_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)

  explicit operator bool() const { return value_.has_value(); }
  CUresult result() const { return result_; }  // CUDA_SUCCESS with a value
  CUresult error() const { return result_; }
  const T& operator*() const { return *value_; }
  const T* operator->() const { return &*value_; }

 private:
  CUresult result_ = CUDA_SUCCESS;
  std::optional<T> value_;
};

}  // namespace rcuda
