// Helpers of the generated weak definitions (api/gen/exports.py). Internal to them.
//
// Any thread; nothing blocks. The first call of each unsupported function logs its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda.h>

namespace rcuda::api {

inline constexpr size_t kMaxUnsupported = 2048;
extern const char* const kUnsupportedNames[];  // generated; ends with a null

// Logs once per index; returns CUDA_ERROR_NOT_SUPPORTED.
CUresult unsupported(size_t index);

// The stream of a cuX_ptsz call: 0 is the calling thread's default stream.
inline CUstream per_thread_stream(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

// Helpers for the bodies in api/table/old_versions.toml.
inline CUmemLocation device_location(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

inline CUDA_KERNEL_NODE_PARAMS current_params(const CUDA_KERNEL_NODE_PARAMS_v1& old) {
  CUDA_KERNEL_NODE_PARAMS current{};
  std::memcpy(&current, &old, sizeof(old));
  return current;
}

}  // namespace rcuda::api
