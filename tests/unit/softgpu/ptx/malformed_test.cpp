// Text that is not PTX must give an error that names line and token, in bounded time and memory.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "softgpu/ptx/parser.h"

namespace softgpu::ptx {
namespace {

const std::string kHeader = ".version 9.0\n.target sm_75\n.address_size 64\n";

std::string error_of(const std::string& text) {
  const auto result = parse(text);
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), rcuda::Code::kInvalidArgument);
  return result.status().context();
}

std::string error_in_body(const std::string& body) {
  return error_of(kHeader + ".entry k(.param .u32 p) {\n.reg .b32 %r<4>; .reg .pred %p<2>;\n" +
                  body + "\n}\n");
}

TEST(MalformedTest, NamesLineAndToken) {
  EXPECT_EQ(error_of(kHeader + "\n\nnonsense"),
            "PTX line 6: expected a module-level directive near 'nonsense'");
  EXPECT_EQ(error_of(""), "PTX line 1: expected .version at the end of the text");
  EXPECT_EQ(error_in_body("add.u32 %r1, %r2, %r9;"), "PTX line 6: undeclared register near '%r9'");
}

TEST(MalformedTest, LongAndBinaryTokensAreCut) {
  const std::string error = error_of(kHeader + std::string(10000, 'a'));
  EXPECT_LT(error.size(), 150u);
  EXPECT_THAT(error_of(kHeader + "\x01\xff"), testing::HasSubstr("near '?'"));
}

TEST(MalformedTest, ModuleLevel) {
  EXPECT_NE(error_of(".version nine\n"), "");
  EXPECT_NE(error_of(".version 9.0\n.target 75\n"), "");
  EXPECT_NE(error_of(".version 9.0\n.target sm_x\n"), "");
  EXPECT_NE(error_of(kHeader + ".address_size 32\n"), "");
  EXPECT_NE(error_of(kHeader + ".section .debug_info { .b8 1"), "");
  EXPECT_NE(error_of(kHeader + "/* unfinished"), "");
  EXPECT_NE(error_of(kHeader + ".file 1 \"unfinished"), "");
  EXPECT_NE(error_of(kHeader + ".alias a, b;"), "");
  EXPECT_NE(error_of(kHeader + ".visible"), "");
}

TEST(MalformedTest, Variables) {
  EXPECT_NE(error_of(kHeader + ".global x;"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32;"), "");
  EXPECT_NE(error_of(kHeader + ".global .pred x;"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x"), "");
  EXPECT_NE(error_of(kHeader + ".global .align 3 .u32 x;"), "");
  EXPECT_NE(error_of(kHeader + ".global .align 0 .u32 x;"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x[-1];"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x[1099511627776][1099511627776];"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x[4][];"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x[1] = {1, 2};"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x[1] = {{{1}}};"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x = {1;"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x[][0] = {{}};"), "");
  EXPECT_NE(error_of(kHeader + ".global .u8 x[2] = {0xF(y)};"), "");
  EXPECT_NE(error_of(kHeader + ".global .u8 x[2] = {0xFFFF(y)};"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x = 1; .global .u32 x = 2;"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x; .shared .u32 x;"), "");
  EXPECT_NE(error_of(kHeader + ".shared .u32 x = 1;"), "");
  EXPECT_NE(error_of(kHeader + ".global .u32 x = 1 / 0;"), "");
}

TEST(MalformedTest, SparseInitialisersDoNotFillMemory) {
  EXPECT_NE(error_of(kHeader + ".global .u8 x[16][68719476736] = {{1},{2},{3}};"), "");
}

TEST(MalformedTest, Functions) {
  EXPECT_NE(error_of(kHeader + ".entry"), "");
  EXPECT_NE(error_of(kHeader + ".entry k("), "");
  EXPECT_NE(error_of(kHeader + ".entry k(.param)"), "");
  EXPECT_NE(error_of(kHeader + ".entry k(.reg .u32 x);"), "");
  EXPECT_NE(error_of(kHeader + ".entry k() {"), "");
  EXPECT_NE(error_of(kHeader + ".entry k() { ret; } }"), "");
  EXPECT_NE(error_of(kHeader + ".entry k() { ret; } .entry k() { ret; }"), "");
  EXPECT_NE(error_of(kHeader + ".entry k(.param .b8 x[2000000]) { ret; }"), "");
  EXPECT_NE(error_of(kHeader + ".entry k(.param .u32 x, .param .u32 x) { ret; }"), "");
  EXPECT_NE(error_of(kHeader + ".entry k() .maxntid 1,2,3,4 { ret; }"), "");
}

TEST(MalformedTest, Bodies) {
  EXPECT_NE(error_in_body("bra nowhere;"), "");
  EXPECT_NE(error_in_body("{ inner: } bra inner;"), "");
  EXPECT_NE(error_in_body("a: a: ret;"), "");
  EXPECT_NE(error_in_body("brx.idx %r1, a; a: ret;"), "");
  EXPECT_NE(error_in_body("t: .branchtargets a; a: bra t;"), "");
  EXPECT_NE(error_in_body("t: .branchtargets;"), "");
  EXPECT_NE(error_in_body(".reg .b32 x, x;"), "");
  EXPECT_NE(error_in_body(".reg x;"), "");
  EXPECT_NE(error_in_body(".reg .b32 x<5000000000>;"), "");
  EXPECT_NE(error_in_body("@%r1 ret;"), "");
  EXPECT_NE(error_in_body("@!! ret;"), "");
  EXPECT_NE(error_in_body("add.u32 %r1, %r2"), "");
  EXPECT_NE(error_in_body("add.u32 %r1,, %r2;"), "");
  EXPECT_NE(error_in_body("add.u32 %r1 %r2;"), "");
  EXPECT_NE(error_in_body("ld.u32 %r1, [%r2;"), "");
  EXPECT_NE(error_in_body("ld.u32 %r1, [];"), "");
  EXPECT_NE(error_in_body("mov.b32 {%r1, %r2, %r3;"), "");
  EXPECT_NE(error_in_body("mov.u32 %r1, %tidy;"), "");
  EXPECT_NE(error_in_body("mov.u32 %r1, 0x;"), "");
  EXPECT_NE(error_in_body("mov.u32 %r1, 1.5 & 2;"), "");
  EXPECT_NE(error_in_body("call;"), "");
  EXPECT_NE(error_in_body("call (%r1 f;"), "");
  EXPECT_NE(error_in_body(".unknown 1;"), "");
  EXPECT_NE(error_in_body(".loc 1 2"), "");
}

TEST(MalformedTest, DeepNestingIsAnErrorNotAStackOverflow) {
  EXPECT_THAT(error_in_body(std::string(1000000, '{')), testing::HasSubstr("too deeply"));
  EXPECT_THAT(error_in_body("mov.u32 %r1, " + std::string(1000000, '(')),
              testing::HasSubstr("too deeply"));
  EXPECT_THAT(error_in_body("mov.u32 %r1, " + std::string(1000000, '-')),
              testing::HasSubstr("too deeply"));
  std::string choice = "mov.u32 %r1, 1";
  for (int i = 0; i < 100000; ++i) choice += "?1:1";
  EXPECT_THAT(error_in_body(choice), testing::HasSubstr("too deeply"));
  std::string rows = ".global .u32 x = ";
  EXPECT_NE(error_of(kHeader + rows + std::string(1000000, '{')), "");
}

TEST(MalformedTest, ManyAliasesOfALargeFunctionAreRefused) {
  std::string text = kHeader + ".func f() {\n";
  for (int i = 0; i < 100000; ++i) text += "ret;\n";
  text += "}\n";
  for (int i = 0; i < 100; ++i) text += ".alias a" + std::to_string(i) + ", f;\n";
  EXPECT_THAT(error_of(text), testing::HasSubstr("too many aliases"));
}

TEST(MalformedTest, EveryTruncationOfAModuleIsHandled) {
  const std::string text = kHeader +
                           ".global .u64 x[3] = {y, generic(y)+8, 0xFF00(y)};\n"
                           ".visible .entry k(.param .align 8 .b8 p[16]) .maxntid 32 {\n"
                           ".reg .b32 %r<4>; .reg .pred %p<2>; .reg .b64 %rd<3>;\n"
                           "again: @!%p1 ld.param.v2.u32 {%r1, %r2}, [p+8];\n"
                           "call.uni (p), f, (p); t: .branchtargets again; brx.idx %r1, t;\n"
                           "setp.lt.s32 %p0|%p1, %r1, (1+2)*0x10U; bra again; }\n";
  ASSERT_EQ(error_of(text), "");
  for (size_t size = 0; size < text.size(); ++size) {
    const auto result = parse(text.substr(0, size));
    if (result.ok()) continue;
    EXPECT_EQ(result.status().code(), rcuda::Code::kInvalidArgument) << size;
  }
}

}  // namespace
}  // namespace softgpu::ptx
