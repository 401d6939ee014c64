#include "softgpu/ptx/parser.h"

#include <bit>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace softgpu::ptx {
namespace {

using testing::ElementsAre;
using Kind = Operand::Kind;

std::unique_ptr<Module> parse_module(const std::string& text) {
  auto result = parse(".version 9.0\n.target sm_75\n.address_size 64\n" + text);
  if (!result.ok()) {
    ADD_FAILURE() << result.status().message();
    return std::make_unique<Module>();
  }
  return std::move(*result);
}

// A kernel around `body`, with a parameter `p` and a few registers.
std::unique_ptr<Module> parse_body(const std::string& body) {
  return parse_module(
      ".visible .entry k(.param .u64 p)\n{\n"
      ".reg .pred %p<4>; .reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .f32 %f<9>; .reg .f64 "
      "%fd<3>;\n" +
      body + "\n}\n");
}

Instruction parse_instruction(const std::string& text) {
  auto module = parse_body(text);
  if (module->functions.empty() || module->functions[0].code.empty()) {
    ADD_FAILURE() << "no instruction in " << text;
    return {};
  }
  // The result has views into the module, so the module is kept.
  static std::vector<std::unique_ptr<Module>> kept;
  kept.push_back(std::move(module));
  return kept.back()->functions[0].code[0];
}

const Variable& only_variable(const Module& module) {
  EXPECT_EQ(module.variables.size(), 1u);
  static const Variable none;
  return module.variables.empty() ? none : module.variables[0];
}

TEST(ParserTest, ReadsHeader) {
  auto module =
      parse(".version 9.0\n.target sm_90a, texmode_independent, debug\n.address_size 64\n");
  ASSERT_TRUE(module.ok()) << module.status().message();
  EXPECT_EQ((*module)->target_sm, 90u);
}

TEST(ParserTest, TextEndsAtFirstNul) {
  auto module = parse(std::string(".version 8.8\n.target sm_75\0garbage", 34));
  ASSERT_TRUE(module.ok()) << module.status().message();
}

TEST(ParserTest, SkipsComments) {
  auto module = parse_module("// line\n/* block\n over lines */ .global .u32 x; // end");
  EXPECT_EQ(only_variable(*module).name, "x");
}

TEST(ParserTest, ParameterAlignmentIsNotThatOfThePointee) {
  auto module = parse_module(
      ".visible .entry k(.param .u8 a, .param .u64 .ptr .global .align 1 b,\n"
      ".param .align 16 .b8 c[20], .param .u64 .ptr d, .param .f32 e) { ret; }");
  const Function& kernel = module->functions.at(0);
  ASSERT_EQ(kernel.parameters.size(), 5u);
  EXPECT_TRUE(kernel.is_entry);
  EXPECT_EQ(kernel.parameters[1].offset_bytes, 8u);
  EXPECT_EQ(kernel.parameters[1].align_bytes, 8u);
  EXPECT_EQ(kernel.parameters[2].offset_bytes, 16u);
  EXPECT_EQ(kernel.parameters[2].size_bytes, 20u);
  EXPECT_EQ(kernel.parameters[3].offset_bytes, 40u);
  EXPECT_EQ(kernel.parameters[4].offset_bytes, 48u);
  EXPECT_EQ(kernel.parameters[4].element, Type::kF32);
}

TEST(ParserTest, FunctionsHaveParametersThenReturnsAsVariables) {
  auto module = parse_module(
      ".func (.param .align 8 .b8 back[16]) f(.param .b32 in) { .local .b8 depot[24]; ret; }");
  const Function& function = module->functions.at(0);
  ASSERT_EQ(function.variables.size(), 3u);
  EXPECT_EQ(function.variables[0].name, "in");
  EXPECT_EQ(function.variables[1].name, "back");
  EXPECT_EQ(function.variables[1].space, Space::kParam);
  EXPECT_EQ(function.variables[2].space, Space::kLocal);
  EXPECT_EQ(function.variables[2].size_bytes, 24u);
}

TEST(ParserTest, DefinitionReplacesDeclaration) {
  auto module = parse_module(
      ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
      ".func f(.param .b32 a);\n.func f(.param .b32 a) { ret; }\n.func f(.param .b32 a);\n"
      ".extern .global .u32 x;\n.visible .global .u32 x = 3;\n.extern .global .u32 x;");
  ASSERT_EQ(module->functions.size(), 2u);
  EXPECT_FALSE(module->functions[0].is_defined);
  EXPECT_EQ(module->functions[0].linkage, Linkage::kExtern);
  EXPECT_TRUE(module->functions[1].is_defined);
  EXPECT_EQ(only_variable(*module).linkage, Linkage::kVisible);
  EXPECT_THAT(only_variable(*module).initial, ElementsAre(3, 0, 0, 0));
}

TEST(ParserTest, FunctionAttributes) {
  auto module = parse_module(
      ".visible .entry k()\n.maxntid 256, 2\n.minnctapersm 3\n.maxnreg 64\n.pragma \"x\";\n"
      ".reqnctapercluster 2, 1, 1\n.explicitcluster\n.maxclusterrank 8\n{ ret; }\n"
      ".entry q .reqntid 8, 4, 2 { ret; }\n.extern .func stop() .noreturn;");
  const Function& kernel = module->functions.at(0);
  EXPECT_THAT(kernel.max_threads, ElementsAre(256, 2, 1));
  EXPECT_THAT(kernel.required_cluster, ElementsAre(2, 1, 1));
  EXPECT_THAT(module->functions.at(1).required_threads, ElementsAre(8, 4, 2));
  EXPECT_FALSE(module->functions.at(2).is_defined);
}

TEST(ParserTest, LinkageAndSpaces) {
  auto module = parse_module(
      ".visible .global .align 4 .u32 a;\n.extern .shared .align 16 .b8 b[];\n"
      ".weak .const .align 8 .f64 c[4];\n.common .global .b32 d;\n"
      ".global .attribute(.managed) .align 8 .u64 e;\n.shared .v4 .f32 f[2];\n"
      ".global .texref t;");
  ASSERT_EQ(module->variables.size(), 7u);
  EXPECT_EQ(module->variables[0].linkage, Linkage::kVisible);
  EXPECT_EQ(module->variables[1].space, Space::kShared);
  EXPECT_EQ(module->variables[1].size_bytes, 0u);
  EXPECT_EQ(module->variables[1].align_bytes, 16u);
  EXPECT_EQ(module->variables[2].linkage, Linkage::kWeak);
  EXPECT_EQ(module->variables[2].size_bytes, 32u);
  EXPECT_EQ(module->variables[3].linkage, Linkage::kCommon);
  EXPECT_TRUE(module->variables[4].managed);
  EXPECT_EQ(module->variables[5].size_bytes, 32u);
  EXPECT_EQ(module->variables[5].align_bytes, 16u);
  EXPECT_EQ(module->variables[6].size_bytes, 8u);
}

TEST(ParserTest, InitialisersMayBeShorterThanTheArray) {
  auto module = parse_module(".global .align 2 .u16 x[4] = {1, 0xFFFF,};");
  EXPECT_EQ(only_variable(*module).size_bytes, 8u);
  EXPECT_THAT(only_variable(*module).initial, ElementsAre(1, 0, 0xff, 0xff));
}

TEST(ParserTest, NestedInitialisersFillRows) {
  auto module = parse_module(".global .u8 x[][3] = {{1}, {2, 3, 4}, {5, 6}};");
  EXPECT_EQ(only_variable(*module).size_bytes, 9u);
  EXPECT_THAT(only_variable(*module).initial, ElementsAre(1, 0, 0, 2, 3, 4, 5, 6));
  module = parse_module(".global .v2 .u8 x[3] = {{1, 2}, {3}, 4, 5};");
  EXPECT_THAT(only_variable(*module).initial, ElementsAre(1, 2, 3, 0, 4, 5));
}

TEST(ParserTest, FloatInitialisers) {
  auto module = parse_module(".const .f32 x[4] = {1.0, 0f40000000, -0.5, 3};");
  std::vector<float> values(4);
  ASSERT_EQ(only_variable(*module).initial.size(), 16u);
  std::memcpy(values.data(), only_variable(*module).initial.data(), 16);
  EXPECT_THAT(values, ElementsAre(1.0f, 2.0f, -0.5f, 3.0f));
}

TEST(ParserTest, InitialisersWithAddresses) {
  auto module = parse_module(".global .u64 x[4] = {y, generic(y)+8, y-4, generic(f)};");
  const std::vector<Relocation>& relocations = only_variable(*module).relocations;
  ASSERT_EQ(relocations.size(), 4u);
  EXPECT_EQ(relocations[0].symbol, "y");
  EXPECT_FALSE(relocations[0].generic);
  EXPECT_EQ(relocations[1].offset, 8u);
  EXPECT_EQ(relocations[1].addend, 8);
  EXPECT_TRUE(relocations[1].generic);
  EXPECT_EQ(relocations[2].addend, -4);
  EXPECT_EQ(relocations[3].symbol, "f");
  EXPECT_EQ(only_variable(*module).initial.size(), 32u);
}

TEST(ParserTest, InitialisersWithBytesOfAddresses) {
  auto module = parse_module(
      ".global .align 8 .u8 x[4] = {7, 0xFF(y), 0xFF00(generic(y)+4), 0xFF00000000000000(y)};");
  const std::vector<Relocation>& relocations = only_variable(*module).relocations;
  ASSERT_EQ(relocations.size(), 3u);
  EXPECT_EQ(relocations[0].offset, 1u);
  EXPECT_EQ(relocations[0].size_bytes, 1u);
  EXPECT_EQ(relocations[0].shift_bits, 0u);
  EXPECT_EQ(relocations[1].shift_bits, 8u);
  EXPECT_EQ(relocations[1].addend, 4);
  EXPECT_TRUE(relocations[1].generic);
  EXPECT_EQ(relocations[2].shift_bits, 56u);
}

TEST(ParserTest, SplitsOpcodeAndModifiers) {
  const Instruction load =
      parse_instruction("@!%p2 ld.global.L1::no_allocate.L2::128B.v2.f32 {%f1, _}, [%rd3+-16];");
  EXPECT_EQ(load.opcode, "ld");
  EXPECT_THAT(load.modifiers, ElementsAre("global", "L1::no_allocate", "L2::128B", "v2", "f32"));
  ASSERT_TRUE(load.guard.has_value());
  EXPECT_TRUE(load.guard->negated);
  EXPECT_EQ(load.line, 7u);
  ASSERT_EQ(load.operands.size(), 2u);
  EXPECT_EQ(load.operands[0].kind, Kind::kVector);
  EXPECT_EQ(load.operands[0].elements[1].kind, Kind::kSink);
  EXPECT_EQ(load.operands[1].kind, Kind::kAddress);
  EXPECT_EQ(load.operands[1].elements[0].kind, Kind::kRegister);
  EXPECT_EQ(load.operands[1].offset, -16);
}

TEST(ParserTest, AddressesOfEveryBase) {
  EXPECT_EQ(parse_instruction("ld.param.u64 %rd1, [p+8];").operands[1].elements[0].kind,
            Kind::kVariable);
  EXPECT_EQ(parse_instruction("ld.param.u64 %rd1, [p+8];").operands[1].offset, 8);
  const Operand symbol = parse_instruction("ld.global.u32 %r1, [table+4-1];").operands[1];
  EXPECT_EQ(symbol.elements[0].kind, Kind::kSymbol);
  EXPECT_EQ(symbol.elements[0].offset, 0);
  EXPECT_EQ(symbol.offset, 3);
  const Operand number = parse_instruction("ld.shared.u32 %r1, [16+4];").operands[1];
  EXPECT_EQ(number.elements[0].kind, Kind::kImmediate);
  EXPECT_EQ(number.elements[0].bits, 20u);
  const Operand tensor = parse_instruction("prefetch.tensor.2d.L2 [%rd1, {%r1, %r2}];").operands[0];
  ASSERT_EQ(tensor.elements.size(), 2u);
  EXPECT_EQ(tensor.elements[1].kind, Kind::kVector);
}

TEST(ParserTest, ImmediatesOfEveryKind) {
  const auto immediate = [](const std::string& text) {
    return parse_instruction("mov.b64 %rd1, " + text + ";").operands[1];
  };
  EXPECT_EQ(immediate("-1").bits, ~0ull);
  EXPECT_EQ(immediate("0x80000000").bits, 0x80000000u);
  EXPECT_EQ(immediate("0f3F800000").kind, Kind::kFloat32);
  EXPECT_EQ(immediate("-0f3F800000").bits, 0xbf800000u);
  EXPECT_EQ(immediate("1.5").kind, Kind::kFloat64);
  EXPECT_EQ(immediate("-1.5").bits, std::bit_cast<uint64_t>(-1.5));
  EXPECT_EQ(immediate("WARP_SZ").kind, Kind::kSpecial);
  EXPECT_EQ(immediate("-WARP_SZ*2").bits, static_cast<uint64_t>(-64));
  EXPECT_EQ(immediate("1+2*3-4").bits, 3u);
  EXPECT_EQ(immediate("(1+2)*3 << 2 | 1").bits, 37u);
  EXPECT_EQ(immediate("-7/2").bits, static_cast<uint64_t>(-3));
  EXPECT_EQ(immediate("(.u64)-1 > 5 ? 10 : 20").bits, 10u);
  EXPECT_EQ(immediate("!0 && ~0 != 0").bits, 1u);
  EXPECT_EQ(immediate("8 >= 8").bits, 1u);
}

TEST(ParserTest, SpecialRegistersKeepTheirComponent) {
  EXPECT_EQ(parse_instruction("mov.u32 %r1, %tid.x;").operands[1].name, "%tid.x");
  EXPECT_EQ(parse_instruction("mov.u64 %rd1, %clock64;").operands[1].kind, Kind::kSpecial);
  EXPECT_EQ(parse_instruction("mov.u32 %r1, %envreg3;").operands[1].kind, Kind::kSpecial);
}

TEST(ParserTest, PairsAndNegation) {
  const Instruction compare = parse_instruction("setp.lt.and.s32 %p1|%p2, %r1, -5, !%p3;");
  ASSERT_EQ(compare.operands.size(), 4u);
  EXPECT_EQ(compare.operands[0].kind, Kind::kPair);
  EXPECT_EQ(compare.operands[0].elements.size(), 2u);
  EXPECT_TRUE(compare.operands[3].negated);
  EXPECT_TRUE(parse_instruction("add.f32 %f1, -%f2, %f3;").operands[1].negated);
}

TEST(ParserTest, RegistersAreNumberedAsMentioned) {
  auto module = parse_body("mov.u32 %r7, %r3; mov.u32 %r3, %r7;");
  const Function& kernel = module->functions.at(0);
  ASSERT_EQ(kernel.registers.size(), 2u);
  EXPECT_EQ(kernel.registers[0].name, "%r7");
  EXPECT_EQ(kernel.registers[0].type, Type::kB32);
  EXPECT_EQ(kernel.code[1].operands[0].index, 1u);
  EXPECT_EQ(kernel.code[1].operands[1].index, 0u);
}

TEST(ParserTest, RangesWhoseNamesEndInDigits) {
  auto module = parse_body(".reg .f32 %r1<5>; mov.b32 %r12, 0; mov.b32 %r9, 0; mov.b32 %r1, 0;");
  const Function& kernel = module->functions.at(0);
  ASSERT_EQ(kernel.registers.size(), 3u);
  EXPECT_EQ(kernel.registers[0].type, Type::kF32);  // number 2 of %r1<5>: %r<10> has no number 12
  EXPECT_EQ(kernel.registers[1].type, Type::kB32);
  EXPECT_EQ(kernel.registers[2].type, Type::kB32);
}

TEST(ParserTest, NestedScopesShadowAndEnd) {
  auto module = parse_body(
      "mov.u32 %r1, 0;\n"
      "{ .reg .u32 t, %r1; mov.u32 t, %r1; { .reg .f64 t; mov.f64 t, 0d0000000000000000; } "
      "mov.u32 t, 1; }\n"
      "{ .reg .pred t; setp.eq.u32 t, %r1, 0; }\n");
  const Function& kernel = module->functions.at(0);
  ASSERT_EQ(kernel.code.size(), 5u);
  const auto type = [&kernel](size_t code, size_t operand) {
    return kernel.registers[kernel.code[code].operands[operand].index].type;
  };
  EXPECT_EQ(type(1, 0), Type::kU32);
  EXPECT_NE(kernel.code[1].operands[1].index, kernel.code[0].operands[0].index);
  EXPECT_EQ(type(2, 0), Type::kF64);
  EXPECT_EQ(kernel.code[3].operands[0].index, kernel.code[1].operands[0].index);
  EXPECT_EQ(type(4, 0), Type::kPred);
  EXPECT_EQ(kernel.code[4].operands[1].index, kernel.code[0].operands[0].index);
}

TEST(ParserTest, LabelsAreLocalToTheirScope) {
  auto module = parse_body(
      "again: { again: add.u32 %r1, %r1, 1; bra again; bra done; done: }\n"
      "{ again: add.u32 %r1, %r1, 1; @%p1 bra again; }\n"
      "bra.uni again; { bra finish; } finish:");
  const std::vector<Instruction>& code = module->functions.at(0).code;
  ASSERT_EQ(code.size(), 7u);
  EXPECT_EQ(code[1].operands[0].kind, Kind::kLabel);
  EXPECT_EQ(code[1].operands[0].index, 0u);
  EXPECT_EQ(code[2].operands[0].index, 3u);
  EXPECT_EQ(code[4].operands[0].index, 3u);
  EXPECT_EQ(code[5].operands[0].index, 0u);
  EXPECT_EQ(code[6].operands[0].index, 7u);  // one past the last instruction
}

TEST(ParserTest, BranchTables) {
  auto module =
      parse_body("ts: .branchtargets L1, L2, L1;\nbrx.idx.uni %r1, ts;\nL1: ret;\nL2: exit;");
  const Function& kernel = module->functions.at(0);
  EXPECT_EQ(kernel.code[0].operands[1].kind, Kind::kTable);
  ASSERT_EQ(kernel.branch_tables.size(), 1u);
  EXPECT_THAT(kernel.branch_tables[0], ElementsAre(1, 2, 1));
}

TEST(ParserTest, Calls) {
  auto module = parse_body(
      "call.uni f;\n"
      "{ .param .b32 a; .param .align 8 .b8 b[16]; .param .b64 r;\n"
      "call.uni (r), f, (a, b);\n"
      "proto: .callprototype (.param .b64 _) _ (.param .b32 _, .param .align 8 .b8 _[16]) "
      ".noreturn;\n"
      "call (r), %rd1, (a, b), proto; call %rd1, (a), proto; }");
  const Function& kernel = module->functions.at(0);
  EXPECT_EQ(kernel.code[0].operands.size(), 1u);
  const std::vector<Operand>& direct = kernel.code[1].operands;
  ASSERT_EQ(direct.size(), 3u);
  EXPECT_EQ(direct[0].kind, Kind::kList);
  EXPECT_EQ(direct[0].elements[0].kind, Kind::kVariable);
  EXPECT_EQ(direct[1].kind, Kind::kSymbol);
  EXPECT_EQ(direct[1].name, "f");
  EXPECT_EQ(direct[2].elements.size(), 2u);
  const std::vector<Operand>& indirect = kernel.code[2].operands;
  ASSERT_EQ(indirect.size(), 4u);
  EXPECT_EQ(indirect[1].kind, Kind::kRegister);
  EXPECT_EQ(indirect[3].kind, Kind::kTable);
  ASSERT_EQ(kernel.prototypes.size(), 1u);
  EXPECT_EQ(kernel.prototypes[0].parameters[1].size_bytes, 16u);
  EXPECT_EQ(kernel.prototypes[0].parameters[1].offset_bytes, 8u);
  EXPECT_EQ(kernel.code[3].operands.size(), 3u);
}

TEST(ParserTest, DebugInformationIsSkipped) {
  auto module = parse_module(
      ".entry k() {\n.loc 1 10 3\nret;\n.loc 1 11 3, function_name $L__info0+4, inlined_at 1 3 2\n"
      "$L__tmp0: .pragma \"nounroll\"; ret; }\n"
      ".file 1 \"a \\\" b.cu\", 123, 456\n"
      ".section .debug_str\n{\n$L__info0:\n.b8 1,2\n.b64 $L__tmp0\n}\n.section .debug_loc { }");
  EXPECT_EQ(module->functions.at(0).code.size(), 2u);
  EXPECT_EQ(module->functions.at(0).code[1].line, 8u);
}

TEST(ParserTest, AliasIsACopyOfItsTarget) {
  auto module = parse_module(
      ".visible .func a(.param .b32 x);\n.func b(.param .b32 x) { ret; }\n.alias a, b;");
  ASSERT_EQ(module->functions.size(), 2u);
  EXPECT_EQ(module->functions[0].name, "a");
  EXPECT_TRUE(module->functions[0].is_defined);
  EXPECT_EQ(module->functions[0].linkage, Linkage::kVisible);
}

TEST(ParserTest, VariablesInsideFunctions) {
  auto module = parse_body(
      ".shared .align 16 .b8 tile[64]; .global .u32 count = 5; mov.u64 %rd1, tile+4;\n"
      "st.global.u32 [count], %r1;");
  const Function& kernel = module->functions.at(0);
  ASSERT_EQ(kernel.variables.size(), 2u);
  EXPECT_EQ(kernel.variables[1].space, Space::kShared);
  EXPECT_EQ(kernel.code[0].operands[1].kind, Kind::kVariable);
  EXPECT_EQ(kernel.code[0].operands[1].offset, 4);
  EXPECT_EQ(only_variable(*module).name, "count");
  EXPECT_EQ(kernel.code[1].operands[0].elements[0].kind, Kind::kSymbol);
}

}  // namespace
}  // namespace softgpu::ptx
