// Host functions and stream callbacks: application code run on a stream's thread.
//
// While it runs its stream waits, and no CUDA call may be made from it: in_host_function()
// (operation.h) is true on that thread and entry points return CUDA_ERROR_NOT_PERMITTED.
// cuLaunchHostFunc's functions are dropped once the context has failed, cuStreamAddCallback's are
// called with the error.
#pragma once

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::driver {

void run_host_operation(const HostOperation& operation, CUresult status);

// The same rule for other code of the application that the driver calls.
void run_application_code(CUhostFn function, void* user_data);

}  // namespace softgpu::driver
