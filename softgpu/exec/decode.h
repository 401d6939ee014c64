// Turns one parsed function into its executable form.
//
// Called by load() for every function of a program, on one thread. Instructions outside the list of
// supported forms become kUnsupported ones, and the first of them is named in
// Function::unsupported; that is no error, because programs carry kernels nobody launches.
#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "softgpu/exec/code.h"
#include "softgpu/exec/linker.h"

namespace softgpu::exec {

// Fills *functions[index]; `functions` are those of Linker::functions(), in order, and serve to
// name callees. kNotFound for a symbol that no unit defines.
rcuda::Status decode(const Linker& linker, uint32_t index,
                     const std::vector<std::unique_ptr<Function>>& functions);

}  // namespace softgpu::exec
