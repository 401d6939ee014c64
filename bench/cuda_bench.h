// Shared by the CUDA programs of bench/: error checks that end the program, and timing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <errno.h>

using Clock = std::chrono::steady_clock;

#define CHECK(call)                                                              \
  do {                                                                           \
    const cudaError_t error_ = (call);                                           \
    if (error_ != cudaSuccess) {                                                 \
      std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, #call, \
                   cudaGetErrorString(error_));                                  \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

inline double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Polls without a pause.
inline void await(cudaEvent_t event) {
  cudaError_t result;
  while ((result = cudaEventQuery(event)) == cudaErrorNotReady) {
  }
  CHECK(result);
}

// `values` must not be empty; their order changes.
inline double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The destination of copies from device 0: device 1 if it exists, otherwise device 0.
inline int destination_device() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  return count > 1 ? 1 : 0;
}
