// The parameters of kernels, as the driver reports them. Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/driver_table.h"
#include "common/wire/frame.h"

namespace rcuda::server {

// The parameters of a function or kernel, in order.
inline std::vector<wire::ParameterInfo> parameters_of(const api::DriverTable& driver, void* handle,
                                                      bool is_kernel) {
  std::vector<wire::ParameterInfo> all;
  // Each parameter has at least one byte.
  for (size_t i = 0; i < wire::kMaxParameterBytes; ++i) {
    size_t offset = 0, size = 0;
    const CUresult result =
        is_kernel ? driver.cuKernelGetParamInfo(static_cast<CUkernel>(handle), i, &offset, &size)
                  : driver.cuFuncGetParamInfo(static_cast<CUfunction>(handle), i, &offset, &size);
    if (result != CUDA_SUCCESS) break;
    all.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(size)});
  }
  return all;
}

}  // namespace rcuda::server
