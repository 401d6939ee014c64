#include "softgpu/texture/address.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

std::vector<int32_t> resolved(Address mode, uint32_t size, int64_t first, int64_t last) {
  std::vector<int32_t> indices;
  for (int64_t i = first; i <= last; ++i) indices.push_back(resolve(i, {mode, size, true}));
  return indices;
}

TEST(AddressTest, ModesContinueTheTexture) {
  using Indices = std::vector<int32_t>;
  EXPECT_EQ(resolved(Address::kWrap, 3, -4, 5), (Indices{2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(resolved(Address::kClamp, 3, -2, 4), (Indices{0, 0, 0, 1, 2, 2, 2}));
  EXPECT_EQ(resolved(Address::kMirror, 3, -4, 6), (Indices{2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0}));
  EXPECT_EQ(resolved(Address::kBorder, 3, -2, 4),
            (Indices{kOutside, kOutside, 0, 1, 2, kOutside, kOutside}));
}

TEST(AddressTest, NearestTexelContainsTheCoordinate) {
  const Axis plain{Address::kClamp, 8, false}, normalised{Address::kClamp, 8, true};
  EXPECT_EQ(nearest(2.999f, plain), 2);
  EXPECT_EQ(nearest(3.0f, plain), 3);
  EXPECT_EQ(nearest(-0.25f, plain), -1);
  EXPECT_EQ(nearest(0.375f, normalised), 3);
  EXPECT_EQ(nearest(0.374f, normalised), 2);
  EXPECT_EQ(nearest(1.25f, {Address::kWrap, 8, true}), 2);
  EXPECT_EQ(nearest(0.01f, {Address::kWrap, 100, true}), 0);  // in 21 bits, 0.01 rounds down
}

TEST(AddressTest, WeightsHaveEightBits) {
  const Axis axis{Address::kClamp, 8, false};
  EXPECT_EQ(enclosing(2.5f, axis).first, 2);
  EXPECT_EQ(enclosing(2.5f, axis).weight, 0u);
  EXPECT_EQ(enclosing(2.75f, axis).first, 2);
  EXPECT_EQ(enclosing(2.75f, axis).weight, 64u);
  EXPECT_EQ(enclosing(2.25f, axis).first, 1);
  EXPECT_EQ(enclosing(2.25f, axis).weight, 192u);
  EXPECT_EQ(enclosing(0.0f, axis).first, -1);
  EXPECT_EQ(enclosing(0.0f, axis).weight, 128u);
}

TEST(AddressTest, AnyFloatIsACoordinate) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Address mode : {Address::kWrap, Address::kClamp, Address::kMirror, Address::kBorder}) {
    for (const bool normalised : {false, true}) {
      for (const uint32_t size : {1u, 5u, 1u << 28}) {
        const Axis axis{mode, size, normalised};
        for (const float c : {kInfinity, -kInfinity, std::nanf(""), 3e38f, -3e38f, 1e-38f}) {
          for (const int64_t i : {nearest(c, axis), enclosing(c, axis).first}) {
            const int32_t texel = resolve(i, axis);
            EXPECT_TRUE(texel == kOutside || (texel >= 0 && static_cast<uint32_t>(texel) < size));
          }
          EXPECT_LT(enclosing(c, axis).weight, kOne);
        }
      }
    }
  }
}

}  // namespace
}  // namespace softgpu::texture
