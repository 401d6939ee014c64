#include "softgpu/texture/sampler.h"

#include <bit>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One-channel floats: texel (x, y, slice) of a level is 100 * slice + 10 * y + x + 1000 * level.
class SamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    texture_.format = *format_of(CU_AD_FORMAT_FLOAT, 1);
    texture_.sampler.greatest_level = 100;
  }

  void add_level(uint32_t width, uint32_t height, uint32_t slices) {
    std::vector<float>& texels = storage_.emplace_back();
    for (uint32_t z = 0; z < slices; ++z) {
      for (uint32_t y = 0; y < height; ++y) {
        for (uint32_t x = 0; x < width; ++x) {
          texels.push_back(
              static_cast<float>(1000 * texture_.levels.size() + 100 * z + 10 * y + x));
        }
      }
    }
    add_image(texels.data(), width, height, slices);
  }
  void add_image(const float* texels, uint32_t width, uint32_t height, uint32_t slices) {
    const uint64_t row = width * sizeof(float);
    texture_.levels.push_back(
        {reinterpret_cast<uint64_t>(texels), width, height, slices, row, row * height});
  }

  Color read(Shape shape, std::array<float, 3> at, uint32_t layer = 0, float level = 0) const {
    return std::bit_cast<Color>(sample(texture_, {shape, at, layer}, level));
  }
  float red(Shape shape, std::array<float, 3> at, uint32_t layer = 0, float level = 0) const {
    return read(shape, at, layer, level)[0];
  }

  Texture texture_;
  std::vector<std::vector<float>> storage_;
};

TEST_F(SamplerTest, NearestTexels) {
  add_level(4, 3, 2);
  EXPECT_EQ(read(Shape::k2d, {2.9f, 1.1f}), (Color{12, 0, 0, 0}));
  EXPECT_EQ(red(Shape::k3d, {0.5f, 2.5f, 1.5f}), 120);
  EXPECT_EQ(red(Shape::k2d, {-5, 99}), 20);
}

TEST_F(SamplerTest, FilteredTexels) {
  add_level(4, 3, 2);
  texture_.sampler.filters = true;
  EXPECT_EQ(red(Shape::k1d, {1.75f}), 1.25f);
  EXPECT_EQ(red(Shape::k2d, {1.75f, 2.0f}), 16.25f);
  EXPECT_EQ(red(Shape::k3d, {1.75f, 2.0f, 1.0f}), 66.25f);
  EXPECT_EQ(red(Shape::k2d, {0, 0.5f}), 0);  // nothing lies to the left of it
}

TEST_F(SamplerTest, NormalisedCoordinatesCoverTheTexture) {
  add_level(4, 2, 1);
  texture_.sampler.filters = true;
  texture_.sampler.is_normalised = true;
  EXPECT_EQ(red(Shape::k2d, {0.5f, 0.5f}), 6.5f);
  texture_.sampler.address[0] = Address::kWrap;
  EXPECT_EQ(red(Shape::k2d, {1.0f, 0.25f}), 1.5f);  // between texels 3 and 0
  EXPECT_EQ(red(Shape::k2d, {-1.625f, 0.25f}), 1);
  texture_.sampler.address[0] = Address::kMirror;
  EXPECT_EQ(red(Shape::k2d, {1.125f, 0.25f}), 3);
}

TEST_F(SamplerTest, BorderTakesPartInTheFilter) {
  add_level(4, 1, 1);
  texture_.sampler.address.fill(Address::kBorder);
  texture_.sampler.border = words_of({8, 0, 0, 0});
  EXPECT_EQ(read(Shape::k1d, {-0.5f}), (Color{8, 0, 0, 0}));
  texture_.sampler.filters = true;
  EXPECT_EQ(red(Shape::k2d, {4.0f, 0.5f}), 5.5f);  // half of texel 3, half of the border
  EXPECT_EQ(red(Shape::k1d, {3.5f}), 5.5f);        // the same, in the direction of y
}

TEST_F(SamplerTest, FilteredIntegersHaveSixteenBits) {
  const uint8_t texels[] = {10, 11, 127, 128};
  texture_.format = *format_of(CU_AD_FORMAT_UNSIGNED_INT8, 1);
  texture_.levels = {{reinterpret_cast<uint64_t>(texels), 4, 1, 1, 4, 4}};
  texture_.sampler.filters = true;
  EXPECT_EQ(red(Shape::k1d, {0.5f}), 10 / 255.0f);
  EXPECT_EQ(red(Shape::k1d, {0.5625f}), 2586 / 65535.0f);  // 10 1/16 of 255
  texture_.format = *format_of(CU_AD_FORMAT_SIGNED_INT8, 1);
  EXPECT_EQ(red(Shape::k1d, {3.0f}), -129 / 32767.0f);  // between 127 and -128
  EXPECT_EQ(red(Shape::k1d, {3.5f}), -1);
}

TEST_F(SamplerTest, TexelsWithoutWeightDoNotCount) {
  const float texels[] = {1, kInfinity, 3};
  add_image(texels, 3, 1, 1);
  texture_.sampler.filters = true;
  EXPECT_EQ(red(Shape::k1d, {0.5f}), 1);
  EXPECT_EQ(red(Shape::k1d, {0.75f}), kInfinity);
}

TEST_F(SamplerTest, LayersAreClamped) {
  add_level(4, 2, 3);
  texture_.shape = Shape::k2dLayered;
  EXPECT_EQ(red(Shape::k2dLayered, {1.5f, 1.5f}, 2), 211);
  EXPECT_EQ(red(Shape::k2dLayered, {1.5f, 1.5f}, 9), 211);
}

TEST_F(SamplerTest, LevelsAreMixed) {
  add_level(4, 4, 1);
  add_level(2, 2, 1);
  texture_.sampler.is_normalised = true;
  EXPECT_EQ(red(Shape::k2d, {0, 0}, 0, 1), 1000);
  texture_.sampler.filters_levels = true;
  EXPECT_EQ(red(Shape::k2d, {0, 0}, 0, 0.25f), 250);
  texture_.sampler.filters = true;
  EXPECT_EQ(red(Shape::k2d, {0.5f, 0.5f}, 0, 0.5f), (16.5f + 1005.5f) / 2);
}

TEST_F(SamplerTest, GatherGoesRoundFromTheLowerLeft) {
  add_level(4, 4, 1);
  const Words words = gather(texture_, {Shape::k2d, {2, 2}, 0}, 0);
  EXPECT_EQ(std::bit_cast<Color>(words), (Color{21, 22, 12, 11}));
  EXPECT_EQ(std::bit_cast<Color>(gather(texture_, {Shape::k2d, {2, 2}, 0}, 3)),
            (Color{0, 0, 0, 0}));
}

TEST_F(SamplerTest, FetchReadsZerosOutside) {
  add_level(4, 2, 1);
  EXPECT_EQ(std::bit_cast<float>(fetch(texture_, Shape::k2d, {3, 1}, 0, 0)[0]), 13);
  EXPECT_EQ(fetch(texture_, Shape::k2d, {4, 1}, 0, 0), Words{});
  EXPECT_EQ(fetch(texture_, Shape::k2d, {0, -1}, 0, 0), Words{});
  EXPECT_EQ(fetch(texture_, Shape::k2d, {0, 0}, 0, 1), Words{});
}

TEST_F(SamplerTest, EveryShapeReadsEveryTexture) {
  // The instruction's shape may differ from the object's: all taps stay inside.
  add_level(3, 1, 1);
  texture_.sampler.filters = true;
  for (const Shape shape : {Shape::k1d, Shape::k2d, Shape::k3d, Shape::k1dLayered,
                            Shape::k2dLayered, Shape::kCube, Shape::kCubeLayered}) {
    for (const float c : {-kInfinity, -2.0f, 0.5f, 7.0f, kInfinity}) {
      const float value = red(shape, {c, c, c}, 5);
      EXPECT_GE(value, 0);
      EXPECT_LE(value, 2);
    }
  }
}

}  // namespace
}  // namespace softgpu::texture
