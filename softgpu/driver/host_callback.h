// Host functions and stream callbacks: application code that runs on a stream's thread.
//
// The stream waits while its function runs. In a process only one host function runs at a time, as
// in NVIDIA's driver, which has one thread for all host functions. So a host function that waits
// for another host function never returns. A function must not make CUDA calls: in_host_function()
// (operation.h) is true on that thread, and entry points return CUDA_ERROR_NOT_PERMITTED. After the
// context has failed, functions of cuLaunchHostFunc are dropped, and callbacks of
// cuStreamAddCallback are called with the error.
#pragma once

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::driver {

void run_host_operation(const HostOperation& operation, CUresult status);

// Calls application code other than host functions, such as a user object's destructor. CUDA calls
// are forbidden in it, too.
void run_application_code(CUhostFn function, void* user_data);

}  // namespace softgpu::driver
