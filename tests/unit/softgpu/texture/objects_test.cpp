#include "softgpu/texture/objects.h"

#include <gtest/gtest.h>

namespace softgpu::texture {
namespace {

TEST(ObjectsTest, HandlesAreNeverUsedTwice) {
  Objects objects;
  const uint64_t first = objects.add(Texture{});
  const uint64_t second = objects.add(Surface{});
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
  objects.remove(first);
  objects.remove(second);
  EXPECT_GT(objects.add(Texture{}), second);
}

TEST(ObjectsTest, SnapshotsKnowOneKindByOneHandle) {
  Objects objects;
  const uint64_t texture = objects.add(Texture{}), surface = objects.add(Surface{});
  const auto snapshot = objects.snapshot();
  EXPECT_NE(snapshot->texture(texture), nullptr);
  EXPECT_NE(snapshot->surface(surface), nullptr);
  EXPECT_EQ(snapshot->texture(surface), nullptr);
  EXPECT_EQ(snapshot->surface(texture), nullptr);
  EXPECT_EQ(snapshot->texture(0), nullptr);
}

TEST(ObjectsTest, RemovedObjectsAreKeptForAWhile) {
  Objects objects;
  const uint64_t first = objects.add(Texture{});
  const auto early = objects.snapshot();
  objects.remove(first);
  for (size_t k = 0; k + 1 < Objects::kKept; ++k) objects.remove(objects.add(Surface{}));
  EXPECT_NE(objects.snapshot()->texture(first), nullptr);
  objects.remove(objects.add(Surface{}));
  EXPECT_EQ(objects.snapshot()->texture(first), nullptr);
  EXPECT_NE(early->texture(first), nullptr);  // a running grid keeps its snapshot
}

}  // namespace
}  // namespace softgpu::texture
