// The families of handlers of one instruction set. Each function returns the handler of a form, or
// nullptr if the family lacks it. Called when code is decoded, on any thread. The handlers
// themselves run on the worker of their block, for one warp's lanes at a time.
#pragma once

#include "softgpu/exec/form.h"

namespace softgpu::exec::SOFTGPU_ISA {

Handler find_integer(const Form& form);
Handler find_packed_integer(const Form& form);
Handler find_bits(const Form& form);
Handler find_compare(const Form& form);
// The comparison function for Instr::imm. All handlers of comparisons use it, except the handler of
// a setp with one predicate and without combination.
uintptr_t comparison_of(const Form& form);
Handler find_float(const Form& form);
Handler find_transcendental(const Form& form);
Handler find_half(const Form& form);
Handler find_convert(const Form& form);
Handler find_memory(const Form& form);
Handler find_atomic(const Form& form);

}  // namespace softgpu::exec::SOFTGPU_ISA
