#include "server/executor/graphs/copy_range.h"

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

constexpr uint64_t kMost = ~uint64_t{0};

TEST(CopyRangeTest, FromTheFirstToTheLastByte) {
  const CopySide side{CU_MEMORYTYPE_DEVICE, 0x1000, 64, 8, 4, 2, 1};
  const auto range = range_of(side, {16, 3, 2});
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 0x1000u + (8 + 2) * 64 + 4);
  EXPECT_EQ(range->first, side.row(0, 0));
  EXPECT_EQ(range->first + range->bytes, side.row(2, 1) + 16);
}

TEST(CopyRangeTest, AnEmptyCopyHasNoBytes) {
  for (const CopyExtent& extent : {CopyExtent{0, 1, 1}, {1, 0, 1}, {1, 1, 0}}) {
    const auto range = range_of({CU_MEMORYTYPE_HOST, 0x1000, 0, 0, kMost, kMost, kMost}, extent);
    ASSERT_TRUE(range);
    EXPECT_EQ(range->first, 0x1000u);
    EXPECT_EQ(range->bytes, 0u);
  }
}

TEST(CopyRangeTest, NumbersThatOverflowOrAreMissingHaveNoRange) {
  for (const CopySide& side : {CopySide{CU_MEMORYTYPE_DEVICE, 0x1000, 0, 8, 0, 0, 0},
                               {CU_MEMORYTYPE_DEVICE, 0x1000, 64, 0, 0, 0, 0},
                               {CU_MEMORYTYPE_DEVICE, 0x1000, kMost, 8, 0, 0, 0},
                               {CU_MEMORYTYPE_DEVICE, 0x1000, 64, 8, kMost, 0, 0},
                               {CU_MEMORYTYPE_DEVICE, 0x1000, 1ull << 40, 1ull << 40, 0, 0, 1},
                               {CU_MEMORYTYPE_DEVICE, kMost - 8, 64, 8, 0, 0, 0}}) {
    EXPECT_FALSE(range_of(side, {16, 3, 2}));
  }
  EXPECT_EQ((CopyExtent{1ull << 40, 1ull << 40, 1}.volume()), 0u);
  EXPECT_EQ((CopyExtent{16, 3, 2}.volume()), 96u);
}

TEST(CopyRangeTest, RowsAndSlicesWithoutPitchAndHeightArePacked) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = reinterpret_cast<void*>(0x1000);
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = 0x2000;
  copy.dstXInBytes = 8;
  copy.WidthInBytes = 16;
  copy.Height = 4;
  copy.Depth = 2;
  EXPECT_EQ(range_of(source_of(copy), extent_of(copy))->bytes, 16u * 4 * 2);
  EXPECT_EQ(destination_of(copy).pitch_bytes, 24u);
  EXPECT_EQ(destination_of(copy).row(0, 0), 0x2008u);
}

}  // namespace
}  // namespace rcuda::server
