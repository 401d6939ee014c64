// Shared by the CUDA programs of bench/: error checks that end the program, and measure.h.
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>
#include <errno.h>

#include "measure.h"

#define CHECK(call)                                                              \
  do {                                                                           \
    const cudaError_t error_ = (call);                                           \
    if (error_ != cudaSuccess) {                                                 \
      std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, #call, \
                   cudaGetErrorString(error_));                                  \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

// Polls the event without pauses until it has completed.
inline void await(cudaEvent_t event) {
  cudaError_t result;
  while ((result = cudaEventQuery(event)) == cudaErrorNotReady) {
  }
  CHECK(result);
}

// The destination of copies from device 0: device 1 if it exists, otherwise device 0.
inline int destination_device() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  return count > 1 ? 1 : 0;
}
