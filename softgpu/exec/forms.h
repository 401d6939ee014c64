// The list of supported instructions, and the search for an instruction in it.
//
// The list (forms.cpp) is a whitelist: a modifier, a combination or an operand shape is supported
// only if a pattern names it. Nothing is ignored by accident: modifiers without effect here (cache
// hints, scopes) are also named in patterns.
#pragma once

#include <string>
#include <string_view>

#include "softgpu/exec/form.h"
#include "softgpu/ptx/module.h"

namespace softgpu::exec {

struct Pattern {
  std::string_view opcode;
  // Groups separated by spaces, matched in order. "a|b": a or b must come next; "[a|b]": a or b may
  // come next. With a leading "~", the groups may come in any order.
  std::string_view modifiers;
  // Operands separated by spaces; a trailing '?' makes an operand optional. See
  // decode_operands.cpp.
  std::string_view operands;
  Op op;
};

// Returns the next pattern whose modifiers fit, or nullptr. An instruction may fit several patterns
// that differ in their operands. `previous`: the last pattern tried, or nullptr.
const Pattern* next_match(const ptx::Instruction& instruction, const Pattern* previous);

// Reads the Form from the modifiers.
Form form_of(const ptx::Instruction& instruction, Op op);

bool has_modifier(const ptx::Instruction& instruction, std::string_view name);

// "add.rn.f32", for messages.
std::string full_name(const ptx::Instruction& instruction);

}  // namespace softgpu::exec
