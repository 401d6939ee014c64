// Shared by the test programs of the driver API: calls that must succeed, or fail with one error.
// program.h has the same for the runtime.
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cuda.h>

// The call must return exactly `expected`.
#define EXPECT(expected, call)                                                   \
  do {                                                                           \
    const CUresult result_ = (call);                                             \
    if (result_ != (expected)) {                                                 \
      const char* name_ = "?";                                                   \
      cuGetErrorName(result_, &name_);                                           \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name_); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

#define CU(call) EXPECT(CUDA_SUCCESS, call)

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)
