// Finds the handlers of one instruction set, for all families; the pointers of InstructionSet point
// to these functions.
#pragma once

#include "softgpu/exec/form.h"

namespace softgpu::exec::SOFTGPU_ISA {

Handler find_handler(const Form& form);
uintptr_t find_comparison(const Form& form);

}  // namespace softgpu::exec::SOFTGPU_ISA
