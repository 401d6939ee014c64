// The version of the driver that this library is or represents, and the functions that this driver
// lacks.
//
// A library exports every function of its build's headers, because the exports of an ELF file do
// not depend on the driver's version. If the driver lacks a function, cuGetProcAddress does not
// find it, and a call of the exported symbol returns CUDA_ERROR_NOT_SUPPORTED. Functions of
// version kOldestDriver and earlier check nothing: every supported driver has them. Any thread;
// only find_driver_version() blocks.
#pragma once

#include <atomic>
#include <climits>

#include <cuda.h>

namespace rcuda::api {

inline constexpr int kOldestDriver = 12040;

namespace internal {
// INT_MAX until the version is known.
[[gnu::visibility("hidden")]] inline std::atomic<int> driver_version{INT_MAX};
}  // namespace internal

inline void set_driver_version(int version) {
  internal::driver_version.store(version, std::memory_order_relaxed);
}
// Whether the driver is older than the version that introduced a function. False until the driver's
// version is known: the function itself then reports that nothing is initialised.
inline bool lacks(int version) {
  return version > internal::driver_version.load(std::memory_order_relaxed);
}

// Logs the function once and returns CUDA_ERROR_NOT_SUPPORTED. `name` is a literal.
CUresult lacking(const char* name, int version);

// The driver's version, for cuGetProcAddress, which programs call before cuInit. May block. The
// weak definition in this folder returns driver_version.
int find_driver_version();

}  // namespace rcuda::api
