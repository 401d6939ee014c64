// Turns one parsed function into its executable form.
//
// load() calls it for every function of a program, on one thread. An instruction that is not in the
// list of supported forms becomes a kUnsupported instruction, and Function::unsupported names the
// first such instruction. That is not an error, because programs contain kernels that are never
// launched.
#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "softgpu/exec/code.h"
#include "softgpu/exec/linker.h"

namespace softgpu::exec {

// Fills *functions[index]. `functions` has an element for each of Linker::functions(), in the same
// order; calls refer to these elements. kNotFound for a symbol that no unit defines,
// kInvalidArgument for too many registers or constants.
rcuda::Status decode(const Linker& linker, uint32_t index,
                     const std::vector<std::unique_ptr<Function>>& functions);

}  // namespace softgpu::exec
