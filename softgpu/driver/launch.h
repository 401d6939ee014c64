// Kernel launches: make a KernelOperation from the arguments of cuLaunchKernel and similar calls,
// or of a graph's kernel node.
//
// Everything that the real driver refuses at the call is refused here with the same code (compared
// with driver 580 on an H200). Later failures are handled by the stream. Any thread; nothing
// blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/operation.h"

namespace softgpu::exec {
struct Kernel;
}

namespace softgpu::driver {

struct LaunchShape {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t dynamic_shared_bytes;
  bool cooperative = false;
};

// The function that a CUfunction, or a CUkernel cast to a CUfunction, names in `context`.
CUresult function_in_context(CUfunction handle, Context& context,
                             std::shared_ptr<Function>* function);

// CUDA_ERROR_INVALID_VALUE for shapes that the device cannot run; _COOPERATIVE_LAUNCH_TOO_LARGE for
// cooperative grids whose blocks cannot all run at once; _NOT_SUPPORTED (logged with the name) for
// kernels that use a PTX form the interpreter lacks.
CUresult check_launch(Function& function, const LaunchShape& shape);

// Packs arguments given as an array of pointers (`parameters`) or as CU_LAUNCH_PARAM_* (`extra`).
// CUDA_ERROR_INVALID_VALUE if both are given or, for a kernel with parameters, neither;
// _LAUNCH_OUT_OF_RESOURCES if `extra` has more bytes than the kernel takes.
CUresult pack_parameters(const exec::Kernel& kernel, void* const* parameters, void* const* extra,
                         std::vector<std::byte>* packed);

// All of the above in one call.
CUresult make_kernel_operation(Context& context, CUfunction handle, const LaunchShape& shape,
                               void* const* parameters, void* const* extra,
                               KernelOperation* operation);

}  // namespace softgpu::driver
