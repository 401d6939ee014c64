#include "softgpu/exec/memory_map.h"

#include <gtest/gtest.h>

namespace softgpu::exec {
namespace {

TEST(MemoryMapTest, FindsTheRangeThatHoldsAnAddress) {
  MemoryMap map;
  ASSERT_TRUE(map.add(0x1000, 0x100));
  ASSERT_TRUE(map.add(0x2000, 0x10, Access::kRead));
  EXPECT_EQ(map.find(0xfff).end, 0u);
  EXPECT_EQ(map.find(0x1000).begin, 0x1000u);
  EXPECT_EQ(map.find(0x10ff).end, 0x1100u);
  EXPECT_EQ(map.find(0x1100).end, 0u);
  EXPECT_EQ(map.find(0x2008).access, Access::kRead);
  EXPECT_EQ(map.find(~uint64_t{0}).end, 0u);
}

TEST(MemoryMapTest, RefusesOverlapsAndEmptyRanges) {
  MemoryMap map;
  ASSERT_TRUE(map.add(0x1000, 0x100));
  EXPECT_FALSE(map.add(0x1000, 0x100));
  EXPECT_FALSE(map.add(0x10ff, 1));
  EXPECT_FALSE(map.add(0xf00, 0x101));
  EXPECT_FALSE(map.add(0x800, 0x1000));
  EXPECT_FALSE(map.add(0x3000, 0));
  EXPECT_FALSE(map.add(~uint64_t{0} - 4, 100));
  EXPECT_TRUE(map.add(0x1100, 1)) << "adjacent ranges do not overlap";
  EXPECT_TRUE(map.add(0xfff, 1));
}

TEST(MemoryMapTest, EveryChangeIsANewGeneration) {
  MemoryMap map;
  uint64_t last = map.generation();
  const auto changed = [&] { return std::exchange(last, map.generation()) != last; };
  ASSERT_TRUE(map.add(0x1000, 0x100));
  EXPECT_TRUE(changed());
  EXPECT_TRUE(map.set_access(0x1000, Access::kRead));
  EXPECT_TRUE(changed());
  EXPECT_EQ(map.find(0x1000).access, Access::kRead);
  EXPECT_FALSE(map.set_access(0x1001, Access::kRead));
  EXPECT_FALSE(map.remove(0x1001));
  EXPECT_FALSE(changed());
  EXPECT_TRUE(map.remove(0x1000));
  EXPECT_TRUE(changed());
  EXPECT_EQ(map.find(0x1000).end, 0u);
}

}  // namespace
}  // namespace softgpu::exec
