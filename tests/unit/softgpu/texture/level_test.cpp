#include "softgpu/texture/level.h"

#include <cmath>

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

Texture mipmapped(uint32_t size, size_t levels) {
  Texture texture;
  texture.sampler.is_normalised = true;
  texture.sampler.greatest_level = 100;
  for (size_t level = 0; level < levels; ++level) {
    const uint32_t extent = size >> level;
    texture.levels.push_back({0, extent, extent, 1, 0, 0});
  }
  return texture;
}

TEST(LevelTest, NearestLevelIsOne) {
  const Texture texture = mipmapped(16, 5);
  EXPECT_EQ(levels_of(texture, 0.25f).first, 0u);
  EXPECT_EQ(levels_of(texture, 0.75f).first, 1u);
  EXPECT_EQ(levels_of(texture, 9).first, 4u);
  EXPECT_EQ(levels_of(texture, -3).first, 0u);
  EXPECT_EQ(levels_of(texture, std::nanf("")).first, 0u);
  EXPECT_EQ(levels_of(texture, 0.75f).weight, 0u);
}

TEST(LevelTest, FilteredLevelsShareTheWeight) {
  Texture texture = mipmapped(16, 5);
  texture.sampler.filters_levels = true;
  EXPECT_EQ(levels_of(texture, 1.25f).first, 1u);
  EXPECT_EQ(levels_of(texture, 1.25f).weight, kOne / 4);
  EXPECT_EQ(levels_of(texture, 7.5f).first, 4u);
  EXPECT_EQ(levels_of(texture, 7.5f).weight, 0u);  // there is no fifth level to mix with
}

TEST(LevelTest, BiasComesBeforeTheClamps) {
  Texture texture = mipmapped(16, 5);
  texture.sampler.filters_levels = true;
  texture.sampler.level_bias = 1;
  texture.sampler.least_level = 0.5f;
  texture.sampler.greatest_level = 2.5f;
  EXPECT_EQ(levels_of(texture, -1).first, 0u);
  EXPECT_EQ(levels_of(texture, -1).weight, kOne / 2);
  EXPECT_EQ(levels_of(texture, 0.25f).first, 1u);
  EXPECT_EQ(levels_of(texture, 0.25f).weight, kOne / 4);
  EXPECT_EQ(levels_of(texture, 3).first, 2u);
  EXPECT_EQ(levels_of(texture, 3).weight, kOne / 2);
}

TEST(LevelTest, StepsOfOneTexelAreLevelZero) {
  const Texture texture = mipmapped(16, 5);
  EXPECT_EQ(level_for_steps(texture, {1 / 16.0f}, {}, 2), 0);
  EXPECT_EQ(level_for_steps(texture, {1 / 16.0f}, {0, 4 / 16.0f}, 2), 2);
  EXPECT_EQ(level_for_steps(texture, {3 / 8.0f, 4 / 8.0f}, {}, 2), 850 / 256.0f);  // log2(10)
  EXPECT_EQ(level_for_steps(texture, {1 / 16.0f}, {1 / 16.0f}, 2), 0.5f);  // along both together
  EXPECT_EQ(levels_of(texture, level_for_steps(texture, {}, {}, 2)).first, 0u);
}

}  // namespace
}  // namespace softgpu::texture
