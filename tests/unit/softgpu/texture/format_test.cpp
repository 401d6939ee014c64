#include "softgpu/texture/format.h"

#include <bit>
#include <vector>

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

Format format(CUarray_format format, unsigned channels) { return *format_of(format, channels); }

template <class T>
const std::byte* bytes_of(const T& value) {
  return reinterpret_cast<const std::byte*>(&value);
}

TEST(FormatTest, FormatsHaveSizes) {
  EXPECT_EQ(format(CU_AD_FORMAT_UNSIGNED_INT8, 4).texel_bytes(), 4u);
  EXPECT_EQ(format(CU_AD_FORMAT_HALF, 2).texel_bytes(), 4u);
  EXPECT_EQ(format(CU_AD_FORMAT_FLOAT, 4).texel_bytes(), 16u);
  EXPECT_EQ(format(CU_AD_FORMAT_SNORM_INT16X2, 2).texel_bytes(), 4u);
  EXPECT_FALSE(format_of(CU_AD_FORMAT_FLOAT, 3));
  EXPECT_FALSE(format_of(CU_AD_FORMAT_UNORM_INT8X4, 2));
  EXPECT_FALSE(format_of(CU_AD_FORMAT_BC1_UNORM, 4));
}

TEST(FormatTest, ViewsNameTheSameFormats) {
  EXPECT_EQ(format_of(CU_RES_VIEW_FORMAT_UINT_4X8), format_of(CU_AD_FORMAT_UNSIGNED_INT8, 4));
  EXPECT_EQ(format_of(CU_RES_VIEW_FORMAT_SINT_2X16), format_of(CU_AD_FORMAT_SIGNED_INT16, 2));
  EXPECT_EQ(format_of(CU_RES_VIEW_FORMAT_FLOAT_1X16), format_of(CU_AD_FORMAT_HALF, 1));
  EXPECT_EQ(format_of(CU_RES_VIEW_FORMAT_FLOAT_4X32), format_of(CU_AD_FORMAT_FLOAT, 4));
  EXPECT_FALSE(format_of(CU_RES_VIEW_FORMAT_NONE));
  EXPECT_FALSE(format_of(CU_RES_VIEW_FORMAT_UNSIGNED_BC1));
}

TEST(FormatTest, IntegersAreExtended) {
  const uint8_t pair[] = {200, 7};
  const Words plain = integers_of(format(CU_AD_FORMAT_UNSIGNED_INT8, 2), bytes_of(pair));
  EXPECT_EQ(plain[0], 200u);
  EXPECT_EQ(plain[1], 7u);
  EXPECT_EQ(integers_of(format(CU_AD_FORMAT_SIGNED_INT8, 1), bytes_of(pair))[0], 0xffffffc8u);
  const int16_t word = -2;
  EXPECT_EQ(integers_of(format(CU_AD_FORMAT_SIGNED_INT16, 1), bytes_of(word))[0], 0xfffffffeu);
}

TEST(FormatTest, NormalisedIntegersReachBothEnds) {
  const auto read = [](CUarray_format is, auto value) {
    return limited(format(is, 1), floats_of(format(is, 1), false, bytes_of(value)))[0];
  };
  EXPECT_EQ(read(CU_AD_FORMAT_UNSIGNED_INT8, uint8_t{255}), 1.0f);
  EXPECT_EQ(read(CU_AD_FORMAT_UNSIGNED_INT8, uint8_t{51}), 0.2f);
  EXPECT_EQ(read(CU_AD_FORMAT_UNSIGNED_INT16, uint16_t{65535}), 1.0f);
  EXPECT_EQ(read(CU_AD_FORMAT_SIGNED_INT8, int8_t{127}), 1.0f);
  EXPECT_EQ(read(CU_AD_FORMAT_SIGNED_INT8, int8_t{-127}), -1.0f);
  EXPECT_EQ(read(CU_AD_FORMAT_SIGNED_INT8, int8_t{-128}), -1.0f);
  EXPECT_EQ(read(CU_AD_FORMAT_SIGNED_INT16, int16_t{-32768}), -1.0f);
}

TEST(FormatTest, BordersHaveTheFormat) {
  const Color border = {0.25f, -2, 3, 0.5f};
  const auto color = [&](CUarray_format is, unsigned channels) {
    return std::bit_cast<Color>(border_words(format(is, channels), false, border));
  };
  EXPECT_EQ(color(CU_AD_FORMAT_FLOAT, 4), border);
  EXPECT_EQ(color(CU_AD_FORMAT_FLOAT, 2), (Color{0.25f, -2, 0, 0}));
  EXPECT_EQ(color(CU_AD_FORMAT_UNSIGNED_INT8, 4), (Color{64 / 255.0f, 0, 1, 127 / 255.0f}));
  const Color halves =
      std::bit_cast<Color>(border_words(format(CU_AD_FORMAT_HALF, 2), false, {0.3f, -0.7f, 0, 0}));
  EXPECT_EQ(halves, (Color{0x4ccp-12f, -0x599p-11f, 0, 0}));  // truncated, not rounded
  const auto bits = std::bit_cast<Color>(Words{0x12345678, 0xfffffffe, 7, 0});
  EXPECT_EQ(border_words(format(CU_AD_FORMAT_UNSIGNED_INT8, 4), true, bits),
            (Words{0x78, 0xfe, 7}));
  EXPECT_EQ(border_words(format(CU_AD_FORMAT_SIGNED_INT8, 2), true, bits),
            (Words{0x78, 0xfffffffe}));
}

TEST(FormatTest, HalvesAreExact) {
  const auto read = [](uint16_t half) {
    return floats_of(format(CU_AD_FORMAT_HALF, 1), false, bytes_of(half))[0];
  };
  EXPECT_EQ(read(0x3c00), 1.0f);
  EXPECT_EQ(read(0xc100), -2.5f);
  EXPECT_EQ(read(0x0001), 0x1p-24f);
  EXPECT_EQ(read(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(read(0x7bff), 65504.0f);
  EXPECT_EQ(std::bit_cast<uint32_t>(read(0xfc00)), 0xff800000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(read(0x8000)), 0x80000000u);
}

TEST(FormatTest, SrgbLeavesAlphaAlone) {
  const uint8_t texel[] = {0, 255, 10, 128};
  const Color color = floats_of(format(CU_AD_FORMAT_UNSIGNED_INT8, 4), true, bytes_of(texel));
  EXPECT_EQ(color[0], 0.0f);
  EXPECT_EQ(color[1], 1.0f);
  EXPECT_NEAR(static_cast<double>(color[2]), 10 / 255.0 / 12.92, 1e-6);  // the linear part
  EXPECT_EQ(color[3], 128 / 255.0f);
}

TEST(FormatTest, MissingChannelsAreZero) {
  const float one = 7;
  EXPECT_EQ(floats_of(format(CU_AD_FORMAT_FLOAT, 1), false, bytes_of(one)), (Color{7, 0, 0, 0}));
}

}  // namespace
}  // namespace softgpu::texture
