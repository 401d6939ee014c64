#include "client/code/parameters.h"

#include <algorithm>
#include <cstring>

#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Returns the packed buffer that an `extra` array describes.
CUresult extra_buffer(void** extra, std::span<const std::byte>* buffer) {
  const void* data = nullptr;
  const size_t* bytes = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      data = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = static_cast<const size_t*>(extra[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (!data || !bytes || *bytes > wire::kMaxParameterBytes) return CUDA_ERROR_INVALID_VALUE;
  *buffer = {static_cast<const std::byte*>(data), *bytes};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult parameter_bytes(const FunctionInfo& info, void** parameters, void** extra, size_t* bytes) {
  if (extra && parameters && *extra != CU_LAUNCH_PARAM_END) return CUDA_ERROR_INVALID_VALUE;
  if (extra && !parameters) {
    std::span<const std::byte> buffer;
    RCUDA_RETURN_IF_CUDA_ERROR(extra_buffer(extra, &buffer));
    *bytes = std::max<size_t>(buffer.size(), info.parameter_bytes);
    return CUDA_SUCCESS;
  }
  if (info.parameter_bytes > 0 && !parameters) return CUDA_ERROR_INVALID_VALUE;
  *bytes = info.parameter_bytes;
  return CUDA_SUCCESS;
}

CUresult pack_parameters(const FunctionInfo& info, void** parameters, void** extra,
                         std::span<std::byte> out) {
  if (out.empty()) return CUDA_SUCCESS;
  std::memset(out.data(), 0, out.size());
  if (extra && !parameters) {
    std::span<const std::byte> buffer;
    RCUDA_RETURN_IF_CUDA_ERROR(extra_buffer(extra, &buffer));
    std::memcpy(out.data(), buffer.data(), buffer.size());
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < info.parameters.size(); ++i) {
    if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(out.data() + info.parameters[i].offset_bytes, parameters[i],
                info.parameters[i].size_bytes);
  }
  return CUDA_SUCCESS;
}

}  // namespace rcuda::client
