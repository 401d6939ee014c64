// The list of supported instructions, and matching an instruction against it.
//
// The list (forms.cpp) is the whitelist: a modifier, a combination or an operand shape that no
// pattern names is not supported. Nothing is ignored by accident; a modifier that has no effect
// here (cache hints, scopes) is named in a pattern all the same.
#pragma once

#include <string>
#include <string_view>

#include "softgpu/exec/form.h"
#include "softgpu/ptx/module.h"

namespace softgpu::exec {

struct Pattern {
  std::string_view opcode;
  // Groups separated by spaces, matched in order: "a|b" one of these must come next, "[a|b]" one of
  // these may. A leading "~" lets the groups come in any order.
  std::string_view modifiers;
  // Operands separated by spaces; a trailing '?' makes one optional. See decode_operands.cpp.
  std::string_view operands;
  Op op;
};

// The patterns whose modifiers fit, in turn: an instruction may fit several that differ in their
// operands. `previous` is the last one tried, nullptr at first; nullptr when there are no more.
const Pattern* next_match(const ptx::Instruction& instruction, const Pattern* previous);

// What the modifiers say.
Form form_of(const ptx::Instruction& instruction, Op op);

bool has_modifier(const ptx::Instruction& instruction, std::string_view name);

// "add.rn.f32", for messages.
std::string full_name(const ptx::Instruction& instruction);

}  // namespace softgpu::exec
