// All PTX that nvcc makes of our kernels must parse into a consistent Module.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "softgpu/ptx/parser.h"

namespace softgpu::ptx {
namespace {

std::string read_fixture(const std::string& name) {
  std::ifstream file(std::string(RCUDA_PTX_FIXTURES) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void check_operand(const Module& module, const Function& function, const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kRegister:
      EXPECT_LT(operand.index, function.registers.size());
      break;
    case Operand::Kind::kVariable:
      EXPECT_LT(operand.index, function.variables.size());
      break;
    case Operand::Kind::kLabel:
      EXPECT_LE(operand.index, function.code.size());
      break;
    case Operand::Kind::kTable:
      EXPECT_LT(operand.index, function.branch_tables.size() + function.prototypes.size());
      break;
    case Operand::Kind::kSymbol: {
      bool known = false;
      for (const Variable& variable : module.variables) known |= variable.name == operand.name;
      for (const Function& other : module.functions) known |= other.name == operand.name;
      EXPECT_TRUE(known) << operand.name;
      break;
    }
    default:
      break;
  }
  for (const Operand& element : operand.elements) check_operand(module, function, element);
}

const Function* find(const Module& module, std::string_view name) {
  for (const Function& function : module.functions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

const Variable* find_variable(const Module& module, std::string_view name) {
  for (const Variable& variable : module.variables) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

class NvccOutputTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Module> parse_kernel(const std::string& kernel) {
    std::string text = read_fixture(kernel + "." + GetParam() + ".ptx");
    EXPECT_FALSE(text.empty());
    auto result = parse(std::move(text));
    if (!result.ok()) {
      ADD_FAILURE() << result.status().message();
      return std::make_unique<Module>();
    }
    for (const Function& function : (*result)->functions) {
      for (const Instruction& instruction : function.code) {
        for (const Operand& operand : instruction.operands) {
          check_operand(**result, function, operand);
        }
      }
    }
    return std::move(*result);
  }
};

TEST_P(NvccOutputTest, Variables) {
  const auto module = parse_kernel("variables");
  const Function* kernel = find(*module, "variables");
  ASSERT_NE(kernel, nullptr);
  ASSERT_EQ(kernel->parameters.size(), 5u);
  EXPECT_EQ(kernel->parameters[1].size_bytes, 24u);
  EXPECT_EQ(kernel->parameters[2].offset_bytes, 32u);
  EXPECT_EQ(kernel->parameters[3].offset_bytes, 40u);
  EXPECT_EQ(kernel->parameters[4].offset_bytes, 48u);

  const Variable* table = find_variable(*module, "table");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->size_bytes, 12u);
  ASSERT_GE(table->initial.size(), 4u);
  EXPECT_EQ(table->initial[2], 0xfe);
  const Variable* link = find_variable(*module, "link");
  ASSERT_NE(link, nullptr);
  EXPECT_FALSE(link->relocations.empty());
  EXPECT_EQ(link->relocations[0].offset, 8u);
  EXPECT_EQ(link->relocations[0].symbol, "counter");
  const Variable* managed = find_variable(*module, "shared_with_host");
  ASSERT_NE(managed, nullptr);
  EXPECT_TRUE(managed->managed);
}

TEST_P(NvccOutputTest, Control) {
  const auto module = parse_kernel("control");
  const Function* kernel = find(*module, "control");
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->max_threads[0], 256u);
  EXPECT_NE(find(*module, "vprintf"), nullptr);
  EXPECT_NE(find(*module, "__assertfail"), nullptr);
}

TEST_P(NvccOutputTest, Collectives) {
  const auto module = parse_kernel("collectives");
  ASSERT_NE(find(*module, "collectives"), nullptr);
  EXPECT_GT(find(*module, "collectives")->code.size(), 50u);
}

INSTANTIATE_TEST_SUITE_P(Targets, NvccOutputTest,
                         testing::Values("sm_75", "sm_90", "sm_100", "debug"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace softgpu::ptx
