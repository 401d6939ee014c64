// The version of the driver that this library is, or stands for, and what it lacks therefore.
//
// A library exports every function of the headers that it was built with, whatever its driver's
// version is: an ELF file cannot do otherwise. What the driver lacks, cuGetProcAddress does not
// find, and a call of the exported symbol returns CUDA_ERROR_NOT_SUPPORTED. Every driver that is
// served has the functions of kOldestDriver, so that these ask nothing. Any thread; nothing blocks
// but find_driver_version().
#pragma once

#include <atomic>
#include <climits>

#include <cuda.h>

namespace rcuda::api {

inline constexpr int kOldestDriver = 12000;

namespace internal {
// INT_MAX until it is known.
[[gnu::visibility("hidden")]] inline std::atomic<int> driver_version{INT_MAX};
}  // namespace internal

inline void set_driver_version(int version) {
  internal::driver_version.store(version, std::memory_order_relaxed);
}
// Whether the driver is older than the version that brought a function. Before the version is known
// the answer is no: the function itself says that nothing is initialised.
inline bool lacks(int version) {
  return version > internal::driver_version.load(std::memory_order_relaxed);
}

// Logs the function once and returns CUDA_ERROR_NOT_SUPPORTED. `name` is a literal.
CUresult lacking(const char* name, int version);

// The driver's version, for cuGetProcAddress, which programs call before cuInit. May have to find
// it out, and block for that. The weak definition here tells what was set.
int find_driver_version();

}  // namespace rcuda::api
