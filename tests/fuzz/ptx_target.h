// The PTX fuzzer's work on one input. softgpu_ptx_test runs it over fixed mutations, too. For any
// text, the result is an error with a message or a Module whose indices are all valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "softgpu/ptx/parser.h"

namespace softgpu::ptx {

inline void check_that(bool holds) {
  if (!holds) std::abort();
}

inline void check_operand(const Function& function, const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kRegister:
      check_that(operand.index < function.registers.size());
      break;
    case Operand::Kind::kVariable:
      check_that(operand.index < function.variables.size());
      break;
    case Operand::Kind::kLabel:
      check_that(operand.index <= function.code.size());
      break;
    case Operand::Kind::kTable:
      check_that(operand.index < function.branch_tables.size() ||
                 operand.index < function.prototypes.size());
      break;
    case Operand::Kind::kAddress:
      check_that(!operand.elements.empty());
      break;
    case Operand::Kind::kPair:
      check_that(operand.elements.size() == 2);
      break;
    case Operand::Kind::kSymbol:
      check_that(!operand.name.empty());
      break;
    default:
      break;
  }
  for (const Operand& element : operand.elements) check_operand(function, element);
}

inline void check_variable(const Variable& variable) {
  check_that(variable.initial.size() <= variable.size_bytes);
  check_that(variable.align_bytes != 0 && (variable.align_bytes & (variable.align_bytes - 1)) == 0);
  for (const Relocation& relocation : variable.relocations) {
    check_that(relocation.offset + relocation.size_bytes <= variable.initial.size());
  }
}

inline void check_function(const Function& function) {
  check_that(function.variables.size() >= function.parameters.size() + function.returns.size());
  for (const Variable& variable : function.variables) check_variable(variable);
  for (const Instruction& instruction : function.code) {
    check_that(!instruction.opcode.empty() && instruction.line != 0);
    if (instruction.guard) check_that(instruction.guard->reg < function.registers.size());
    for (const Operand& operand : instruction.operands) check_operand(function, operand);
  }
  for (const std::vector<uint32_t>& table : function.branch_tables) {
    for (const uint32_t target : table) check_that(target <= function.code.size());
  }
}

inline void fuzz_ptx(const uint8_t* data, size_t size) {
  const auto module = parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!module.ok()) {
    check_that(!module.status().context().empty());
    return;
  }
  for (const Variable& variable : (*module)->variables) check_variable(variable);
  for (const Function& function : (*module)->functions) check_function(function);
}

}  // namespace softgpu::ptx
