// The handlers of one instruction set, whichever family they belong to: what InstructionSet's
// pointers lead to.
#pragma once

#include "softgpu/exec/form.h"

namespace softgpu::exec::SOFTGPU_ISA {

Handler find_handler(const Form& form);
uintptr_t find_comparison(const Form& form);

}  // namespace softgpu::exec::SOFTGPU_ISA
