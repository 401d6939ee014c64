// RCUDA_RETURN_IF_CUDA_ERROR(expression): makes the calling function return the expression's
// CUresult unless it is CUDA_SUCCESS.
#pragma once

#include <cuda.h>

#define RCUDA_RETURN_IF_CUDA_ERROR(expression)                                        \
  do {                                                                                \
    if (const CUresult result_macro_ = (expression); result_macro_ != CUDA_SUCCESS) { \
      return result_macro_;                                                           \
    }                                                                                 \
  } while (0)
