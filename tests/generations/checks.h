// Checks of what calls return, and launches of kernels by their stubs. Each program of this folder
// prints the same with every generation of the runtime, on every GPU and on softgpu.
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime_api.h>

#define EXPECT(expected, call)                                           \
  do {                                                                   \
    const cudaError_t error_ = (call);                                   \
    if (error_ != (expected)) {                                          \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorName(error_));                            \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

#define CUDA(call) EXPECT(cudaSuccess, call)

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)

// has_driver: whether the driver has this version of CUDA or a later one. needs_driver: what a call
// of the runtime returns if drivers support it only since this version.
inline bool has_driver(int version) {
  int driver = 0;
  CUDA(cudaDriverGetVersion(&driver));
  return driver >= version;
}
inline cudaError_t needs_driver(int version) {
  return has_driver(version) ? cudaSuccess : cudaErrorCallRequiresNewerDriver;
}

template <typename... Arguments>
cudaError_t launch(void (*stub)(), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   Arguments... arguments) {
  void* pointers[sizeof...(Arguments) + 1] = {&arguments..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(stub), grid, block, pointers, shared_bytes,
                          stream);
}

inline const void* address(void (*stub)()) { return reinterpret_cast<const void*>(stub); }

// The parts of runtime_calls.
void test_kernels();
void test_memory();
void test_streams();
void test_graphs();
