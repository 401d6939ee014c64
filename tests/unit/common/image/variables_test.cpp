#include "common/image/variables.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

TEST(Variables, OfPtxAreCounted) {
  EXPECT_EQ(ptx_variable_bytes(".version 7.0\n.target sm_70\n.address_size 64\n"
                               ".global .align 8 .b8 big[1000];\n"
                               ".visible.global.u32 one = 7;\n"
                               ".global .v4 .f32 matrix[2][0x10];\n"
                               ".global .f64 x, y[3];\n"
                               ".global .u16 initialised[] = {1, 2, 3};\n"
                               ".global .attribute(.managed) .s32 managed;\n"
                               ".global .b32 many<100>;\n"),
            1007u + 4 + 512 + 32 + 6 + 4 + 400);  // includes the most that alignment can add
}

TEST(Variables, NoFormHidesAny) {
  EXPECT_EQ(ptx_variable_bytes(".global .align 16777216 .b8 a, b;"), 2u << 24);
  EXPECT_EQ(ptx_variable_bytes(".global .b8 a[1] = {0}, b[1000000], c[] = {{1, 2}, {3}}, d;"),
            1u + 1000000 + 3 + 1);
  EXPECT_EQ(ptx_variable_bytes(".global .f16x2 x[1000];"), 4000u);
  // Names that look like types.
  EXPECT_EQ(ptx_variable_bytes(".global .b64 as8[1000], _b8, $u16;"), 8016u);
  EXPECT_EQ(ptx_variable_bytes(".visible .entry k() {\nL1: .global .b8 x[100];\n"
                               ".loc 1 1 1\n.global .b8 y[10];\n"
                               "@%p bra L1;\n ld.global.u32 %r1, [%r2];\n}\n"),
            110u);
}

TEST(Variables, WhatIsElsewhereIsNotCounted) {
  EXPECT_EQ(ptx_variable_bytes(".extern .global .b8 elsewhere[1000];\n"
                               ".const .b8 constant[100];\n.shared .b8 shared[100];\n"
                               "/* .global .b8 comment[100]; */ // .global .b8 comment[100];\n"
                               ".visible .entry k(.param .u64 .ptr .global .align 8 p) {\n"
                               "  .reg .b64 %r<4>;\n  .loc 1 2 3\n"
                               "  ld.global.u32 %r1, [%r2];\n  @%p st.global.u32 [p], %r1;\n}\n"),
            0u);
}

TEST(Variables, SizesInOtherFormsCountAsTooMuch) {
  EXPECT_EQ(ptx_variable_bytes(".global .b8 big[1 << 40];"), UINT64_MAX);
  EXPECT_EQ(ptx_variable_bytes(".global .b8 big[0b111];"), UINT64_MAX);
  EXPECT_EQ(ptx_variable_bytes(".global .b64 big[0xffffffffffffffff];"), UINT64_MAX);
  EXPECT_EQ(ptx_variable_bytes(".global .b8 big[4"), UINT64_MAX);
}

// parameters.cu has one variable, of 4 bytes.
TEST(Variables, OfImagesAreCounted) {
  for (const char* name : {"sm_90.cubin", "balance.fatbin", "none.fatbin", "several.fatbin",
                           "sass_only.fatbin", "ptx_only.fatbin", "sm_75.ptx"}) {
    const std::string content = read_fixture(name);
    const Result<Image> image = inspect(bytes_of(content));
    ASSERT_TRUE(image.ok()) << name;
    const Result<uint64_t> bytes = variable_bytes(*image, 90);
    ASSERT_TRUE(bytes.ok()) << name;
    EXPECT_GE(*bytes, 4u) << name;
    EXPECT_LE(*bytes, 64u) << name;
  }
}

}  // namespace
}  // namespace rcuda::image
