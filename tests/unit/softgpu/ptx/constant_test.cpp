#include "softgpu/ptx/constant.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

namespace softgpu::ptx {
namespace {

Constant number(std::string_view text) {
  Constant value;
  EXPECT_TRUE(parse_number(text, &value)) << text;
  return value;
}

TEST(ConstantTest, ReadsEverySpellingOfIntegers) {
  EXPECT_EQ(number("0").bits, 0u);
  EXPECT_EQ(number("42").bits, 42u);
  EXPECT_EQ(number("0x2A").bits, 42u);
  EXPECT_EQ(number("0X2aU").bits, 42u);
  EXPECT_EQ(number("052").bits, 42u);
  EXPECT_EQ(number("0b101010").bits, 42u);
  EXPECT_EQ(number("18446744073709551615").bits, ~0ull);
  EXPECT_EQ(number("0x1E").bits, 30u);  // no exponent
  EXPECT_EQ(number("7").kind, Constant::Kind::kSigned);
  EXPECT_EQ(number("7U").kind, Constant::Kind::kUnsigned);
}

TEST(ConstantTest, ReadsEverySpellingOfFloats) {
  EXPECT_EQ(number("0f3F800000").kind, Constant::Kind::kFloat32);
  EXPECT_EQ(number("0f3F800000").bits, 0x3f800000u);
  EXPECT_EQ(number("0F3f800000").as_double(), 1.0);
  EXPECT_EQ(number("0d3FF0000000000000").kind, Constant::Kind::kFloat64);
  EXPECT_EQ(number("0d3FF0000000000000").as_double(), 1.0);
  EXPECT_EQ(number("1.5e3").as_double(), 1500.0);
  EXPECT_EQ(number("2.5E-1").as_double(), 0.25);
  EXPECT_EQ(number("0.125").as_double(), 0.125);
  EXPECT_TRUE(std::isinf(number("1e999").as_double()));
}

TEST(ConstantTest, RefusesMalformedNumbers) {
  Constant value;
  for (const char* text : {"08", "0x", "0xG", "0b2", "0f3F80", "0f3F8000001", "0d1", "1.2.3", "1e",
                           "12abc", "18446744073709551616", "0xFFFFFFFFFFFFFFFFF", "U"}) {
    EXPECT_FALSE(parse_number(text, &value)) << text;
  }
}

TEST(ConstantTest, IntegerArithmeticIsSignedUnlessOneSideIsUnsigned) {
  Constant result;
  const Constant minus_one{Constant::Kind::kSigned, ~0ull};
  ASSERT_TRUE(apply_binary(Operator::kLess, minus_one, number("1"), &result));
  EXPECT_EQ(result.bits, 1u);
  ASSERT_TRUE(apply_binary(Operator::kLess, minus_one, number("1U"), &result));
  EXPECT_EQ(result.bits, 0u);
  ASSERT_TRUE(apply_binary(Operator::kDivide, minus_one, number("2"), &result));
  EXPECT_EQ(result.bits, 0u);
  ASSERT_TRUE(apply_binary(Operator::kShiftRight, minus_one, number("60"), &result));
  EXPECT_EQ(result.bits, ~0ull);
  ASSERT_TRUE(
      apply_binary(Operator::kShiftRight, number("0xFFFFFFFFFFFFFFFFU"), number("60"), &result));
  EXPECT_EQ(result.bits, 15u);
}

TEST(ConstantTest, DivisionCannotTrap) {
  Constant result;
  const Constant smallest{Constant::Kind::kSigned, 1ull << 63};
  const Constant minus_one{Constant::Kind::kSigned, ~0ull};
  EXPECT_FALSE(apply_binary(Operator::kDivide, number("1"), number("0"), &result));
  EXPECT_FALSE(apply_binary(Operator::kRemainder, number("1"), number("0U"), &result));
  ASSERT_TRUE(apply_binary(Operator::kDivide, smallest, minus_one, &result));
  EXPECT_EQ(result.bits, 1ull << 63);
  ASSERT_TRUE(apply_binary(Operator::kRemainder, smallest, minus_one, &result));
  EXPECT_EQ(result.bits, 0u);
}

TEST(ConstantTest, ElementsAreConvertedToTheTypeOfTheVariable) {
  EXPECT_EQ(element_bits(Type::kF32, number("1.0")), 0x3f800000u);
  EXPECT_EQ(element_bits(Type::kF32, number("1")), 0x3f800000u);
  EXPECT_EQ(element_bits(Type::kF32, number("0f7F800001")), 0x7f800001u);  // stays signalling
  EXPECT_EQ(element_bits(Type::kF64, number("0f3F800000")), 0x3ff0000000000000u);
  EXPECT_EQ(element_bits(Type::kB32, number("0f3F800000")), 0x3f800000u);
  EXPECT_EQ(element_bits(Type::kU8, number("255")), 255u);
}

}  // namespace
}  // namespace softgpu::ptx
