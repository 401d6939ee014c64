// The functions to which an InstructionSet (form.h) points: they find the handler and the
// comparison function of a form, in one instruction set of the processor.
#pragma once

#include "softgpu/exec/form.h"

namespace softgpu::exec::SOFTGPU_ISA {

Handler find_handler(const Form& form);
uintptr_t find_comparison(const Form& form);

}  // namespace softgpu::exec::SOFTGPU_ISA
