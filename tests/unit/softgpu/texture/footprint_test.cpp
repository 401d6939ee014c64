#include "softgpu/texture/footprint.h"

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

using Weights = std::array<uint32_t, 4>;

// Recorded on an H100.
TEST(FootprintTest, ProductsOfWeightsAreRounded) {
  EXPECT_EQ(split(kOne, 128, 128), (Weights{64, 64, 64, 64}));
  EXPECT_EQ(split(kOne, 3, 5), (Weights{248, 3, 5, 0}));
  // The two slices of a volume, at a quarter of the way between them.
  EXPECT_EQ(split(192, 74, 128), (Weights{68, 28, 68, 28}));
  EXPECT_EQ(split(64, 74, 128), (Weights{23, 9, 22, 10}));
  EXPECT_EQ(split(3, 74, 128), (Weights{1, 0, 1, 1}));
}

TEST(FootprintTest, WeightsAddUp) {
  for (uint32_t whole = 0; whole <= kOne; whole += 3) {
    for (uint32_t right = 0; right < kOne; right += 5) {
      for (uint32_t lower = 0; lower < kOne; lower += 7) {
        uint32_t sum = 0;
        for (const uint32_t weight : split(whole, right, lower)) {
          EXPECT_LE(weight, whole);  // none is negative
          sum += weight;
        }
        ASSERT_EQ(sum, whole);
      }
    }
  }
}

TEST(FootprintTest, ClampedTexelsAreNotMixedWithThemselves) {
  const Axis axis{Address::kClamp, 4, false};
  const Footprint footprint = enclosing_texels({{-0.7f, 3.9f, 0}, 2, 0}, {axis, axis, axis}, kOne);
  EXPECT_EQ(footprint.taps[0].x, 0);
  EXPECT_EQ(footprint.taps[0].y, 3);
  EXPECT_EQ(footprint.taps[0].weight, kOne);
}

TEST(FootprintTest, VolumesHaveTwoSlices) {
  const Axis axis{Address::kClamp, 4, false};
  const Footprint footprint =
      enclosing_texels({{1.5f, 2.5f, 1.75f}, 3, 0}, {axis, axis, axis}, kOne);
  ASSERT_EQ(footprint.count, 8u);
  EXPECT_EQ(footprint.taps[0].slice, 1);
  EXPECT_EQ(footprint.taps[0].weight, 192u);
  EXPECT_EQ(footprint.taps[4].slice, 2);
  EXPECT_EQ(footprint.taps[4].weight, 64u);
  EXPECT_EQ(footprint.taps[4].x, 1);
  EXPECT_EQ(footprint.taps[4].y, 2);
  EXPECT_EQ(footprint.taps[7].weight, 0u);
}

}  // namespace
}  // namespace softgpu::texture
