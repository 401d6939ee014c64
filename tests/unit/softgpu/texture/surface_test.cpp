#include "softgpu/texture/surface.h"

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

using Outcome = SurfaceAccess::Outcome;

// 8 texels of 4 bytes in a row, 4 rows, 2 slices.
constexpr uint64_t kBase = 0x10000;
Surface surface() {
  Surface made;
  made.format = *format_of(CU_AD_FORMAT_UNSIGNED_INT32, 1);
  made.image = {kBase, 8, 4, 2, 32, 128};
  return made;
}

SurfaceAccess at(int32_t x, int32_t y, uint32_t bytes, Bounds bounds) {
  return locate(surface(), {Shape::k2d, {x, y, 0}, 0}, bytes, bounds);
}

TEST(SurfaceTest, BytesInsideAreFound) {
  const SurfaceAccess access = at(12, 2, 4, Bounds::kTrap);
  EXPECT_EQ(access.outcome, Outcome::kInside);
  EXPECT_EQ(access.address, kBase + 2 * 32 + 12);
  EXPECT_EQ(locate(surface(), {Shape::k3d, {28, 3, 1}, 0}, 4, Bounds::kTrap).address,
            kBase + 128 + 3 * 32 + 28);
  EXPECT_EQ(locate(surface(), {Shape::k2dLayered, {0, 1, 0}, 1}, 4, Bounds::kTrap).address,
            kBase + 128 + 32);
  EXPECT_EQ(locate(surface(), {Shape::k1dLayered, {8, 0, 0}, 1}, 4, Bounds::kTrap).address,
            kBase + 128 + 8);
}

TEST(SurfaceTest, BoundsDecideOutside) {
  for (const auto& [x, y] : {std::pair{-4, 0}, {32, 0}, {0, -1}, {0, 4}}) {
    EXPECT_EQ(at(x, y, 4, Bounds::kTrap).outcome, Outcome::kOutside);
    EXPECT_EQ(at(x, y, 4, Bounds::kZero).outcome, Outcome::kNowhere);
    EXPECT_EQ(at(x, y, 4, Bounds::kClamp).outcome, Outcome::kInside);
  }
  EXPECT_EQ(at(-4, 9, 4, Bounds::kClamp).address, kBase + 3 * 32);
  EXPECT_EQ(at(400, 0, 8, Bounds::kClamp).address, kBase + 24);
  EXPECT_EQ(locate(surface(), {Shape::k2dLayered, {0, 0, 0}, 2}, 4, Bounds::kTrap).outcome,
            Outcome::kOutside);
}

TEST(SurfaceTest, PlacesAreAligned) {
  EXPECT_EQ(at(2, 0, 4, Bounds::kClamp).outcome, Outcome::kMisaligned);
  EXPECT_EQ(at(4, 0, 8, Bounds::kZero).outcome, Outcome::kMisaligned);
  EXPECT_EQ(at(3, 0, 1, Bounds::kTrap).address, kBase + 3);
}

TEST(SurfaceTest, AccessesDoNotLeaveTheRow) {
  EXPECT_EQ(at(32, 0, 8, Bounds::kZero).outcome, Outcome::kNowhere);
  EXPECT_EQ(at(24, 0, 8, Bounds::kZero).outcome, Outcome::kInside);
  Surface narrow = surface();
  narrow.image.width = 1;
  EXPECT_EQ(locate(narrow, {Shape::k2d, {0, 0, 0}, 0}, 16, Bounds::kClamp).outcome,
            Outcome::kNowhere);
}

}  // namespace
}  // namespace softgpu::texture
