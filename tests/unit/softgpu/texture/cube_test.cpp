#include "softgpu/texture/cube.h"

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

TEST(CubeTest, AxesPointToTheirFaces) {
  EXPECT_EQ(face_of(1, 0.5f, 0).face, 0u);
  EXPECT_EQ(face_of(-1, 0.5f, 0).face, 1u);
  EXPECT_EQ(face_of(0, 2, 1).face, 2u);
  EXPECT_EQ(face_of(0, -2, 1).face, 3u);
  EXPECT_EQ(face_of(0.5f, 0, 3).face, 4u);
  EXPECT_EQ(face_of(0.5f, 0, -3).face, 5u);
}

TEST(CubeTest, FacesHaveTheirOrientation) {
  const FacePoint right = face_of(1, -0.5f, -0.25f);  // +x: s runs to -z, t to -y
  EXPECT_EQ(right.s, 0.625f);
  EXPECT_EQ(right.t, 0.75f);
  const FacePoint top = face_of(0.5f, 1, -0.5f);  // +y: s runs to +x, t to +z
  EXPECT_EQ(top.s, 0.75f);
  EXPECT_EQ(top.t, 0.25f);
  const FacePoint back = face_of(0.5f, 0.5f, -1);  // -z: s runs to -x, t to -y
  EXPECT_EQ(back.s, 0.25f);
  EXPECT_EQ(back.t, 0.25f);
}

uint32_t total_weight(const Footprint& footprint) {
  uint32_t sum = 0;
  for (uint32_t k = 0; k < footprint.count; ++k) sum += footprint.taps[k].weight;
  return sum;
}

TEST(CubeTest, EdgesContinueOnTheNeighbour) {
  // The left edge of +x is the right edge of +z, in the same rows.
  const Footprint edge = seamless_texels({0, 0, 0.375f}, 4, 0, kOne);
  ASSERT_EQ(edge.count, 4u);
  EXPECT_EQ(total_weight(edge), kOne);
  EXPECT_EQ(edge.taps[0].slice, 4);
  EXPECT_EQ(edge.taps[0].x, 3);
  EXPECT_EQ(edge.taps[0].y, 1);
  EXPECT_EQ(edge.taps[0].weight, kOne / 2);
  EXPECT_EQ(edge.taps[1].slice, 0);
  EXPECT_EQ(edge.taps[1].x, 0);
}

TEST(CubeTest, CornersAreTheMeanOfThreeFaces) {
  const Footprint corner = seamless_texels({0, 0, 0}, 4, 6, kOne);
  ASSERT_EQ(corner.count, 3u);
  EXPECT_EQ(total_weight(corner), kOne);
  EXPECT_EQ(corner.taps[0].slice, 6 + 2);  // above: +y
  EXPECT_EQ(corner.taps[1].slice, 6 + 4);  // to the left: +z
  EXPECT_EQ(corner.taps[2].slice, 6 + 0);
  EXPECT_EQ(corner.taps[1].weight, 85u);
  EXPECT_EQ(corner.taps[2].weight, 86u);  // the sample's own face gets what the division leaves
}

TEST(CubeTest, EveryTapIsATexel) {
  for (uint32_t face = 0; face < 6; ++face) {
    for (const uint32_t size : {1u, 2u, 7u}) {
      for (float s = 0; s <= 1; s += 0.0625f) {
        for (float t = 0; t <= 1; t += 0.0625f) {
          const Footprint footprint = seamless_texels({face, s, t}, size, 0, kOne);
          EXPECT_EQ(total_weight(footprint), kOne);
          for (uint32_t k = 0; k < footprint.count; ++k) {
            const Tap& tap = footprint.taps[k];
            EXPECT_TRUE(tap.x >= 0 && tap.x < static_cast<int32_t>(size) && tap.y >= 0 &&
                        tap.y < static_cast<int32_t>(size) && tap.slice >= 0 && tap.slice < 6);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace softgpu::texture
