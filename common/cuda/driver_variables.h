// The environment variables that change results of the driver API, except CUDA_VISIBLE_DEVICES
// (visible_devices.h). The driver reads them when it starts (cuInit), so later changes of the
// environment have no effect.
#pragma once

#include <cstdlib>

#include <cuda.h>
#include <strings.h>

namespace rcuda::cuda {

struct DriverVariables {
  // CUDA_LAUNCH_BLOCKING: a launch returns after its kernel, with the kernel's error.
  bool launch_blocking = false;
  // CUDA_MODULE_LOADING, case-insensitive; lazy is the default since CUDA 12.2.
  CUmoduleLoadingMode module_loading = CU_MODULE_LAZY_LOADING;
};

inline DriverVariables read_driver_variables() {
  DriverVariables variables;
  const char* const blocking = ::secure_getenv("CUDA_LAUNCH_BLOCKING");
  variables.launch_blocking = blocking && std::strtol(blocking, nullptr, 10) != 0;
  const char* const loading = ::secure_getenv("CUDA_MODULE_LOADING");
  if (loading && strcasecmp(loading, "EAGER") == 0) {
    variables.module_loading = CU_MODULE_EAGER_LOADING;
  }
  return variables;
}

}  // namespace rcuda::cuda
