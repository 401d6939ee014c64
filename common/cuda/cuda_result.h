// CudaResult<T>: a value, or the CUresult of the failure.
//
// RCUDA_ASSIGN_OR_RETURN(declaration, expression): declares a variable with the value of the
// expression's CudaResult. Without a value, makes the calling function return the CUresult.
#pragma once

#include <optional>
#include <utility>

#include <cuda.h>

namespace rcuda {

template <typename T>
class [[nodiscard]] CudaResult {
 public:
  CudaResult(CUresult error) : result_(error) {}     // NOLINT: returned as it is
  CudaResult(T value) : value_(std::move(value)) {}  // NOLINT: returned as it is

  explicit operator bool() const { return value_.has_value(); }
  CUresult result() const { return result_; }  // CUDA_SUCCESS with a value
  const T& operator*() const { return *value_; }
  const T* operator->() const { return &*value_; }

 private:
  CUresult result_ = CUDA_SUCCESS;
  std::optional<T> value_;
};

}  // namespace rcuda

#define RCUDA_ASSIGN_OR_RETURN(declaration, expression) \
  RCUDA_ASSIGN_OR_RETURN_AS(declaration, expression, __LINE__)
#define RCUDA_ASSIGN_OR_RETURN_AS(declaration, expression, line) \
  RCUDA_ASSIGN_OR_RETURN_IN(declaration, expression, line)
#define RCUDA_ASSIGN_OR_RETURN_IN(declaration, expression, line) \
  const auto result_of_##line = (expression);                    \
  if (!result_of_##line) return result_of_##line.result();       \
  declaration = *result_of_##line
