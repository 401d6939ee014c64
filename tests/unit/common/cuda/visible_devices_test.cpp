#include "common/cuda/visible_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kUuids = {
    "GPU-9e8d35e3-0000-0000-0000-000000000000", "GPU-9e8d1111-0000-0000-0000-000000000000",
    "GPU-47f3a000-0000-0000-0000-000000000000", "MIG-5bc00000-0000-0000-0000-000000000000"};

VisibleDevices select(std::string_view list) {
  return select_devices(list, kUuids.size(), [](size_t i) { return kUuids[i]; });
}
std::vector<size_t> positions(std::string_view list) { return select(list).positions; }

TEST(VisibleDevicesTest, NumbersKeepTheirOrder) {
  EXPECT_THAT(positions("0"), ElementsAre(0));
  EXPECT_THAT(positions("3,1,0,2"), ElementsAre(3, 1, 0, 2));
  EXPECT_EQ(select("3,1").problem, "");
}

TEST(VisibleDevicesTest, ANumberIsWhatStrtolReads) {
  EXPECT_THAT(positions(" 0, 1,\t2"), ElementsAre(0, 1, 2));
  EXPECT_THAT(positions("0 ,1 "), ElementsAre(0, 1));
  EXPECT_THAT(positions("2, +3, -0, 1"), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(positions("1gpu2,2ampere"), ElementsAre(1, 2));
  EXPECT_THAT(positions("0x1"), ElementsAre(0));
  EXPECT_THAT(positions("02"), ElementsAre(2));
  EXPECT_THAT(positions("4294967297"), ElementsAre(1));
  EXPECT_THAT(positions("2147483648"), IsEmpty());
  EXPECT_THAT(positions("18446744073709551616"), IsEmpty());
}

TEST(VisibleDevicesTest, TheListEndsAtTheFirstInvalidEntry) {
  EXPECT_THAT(positions("0,2,-1,1"), ElementsAre(0, 2));
  EXPECT_THAT(positions("2,abc,1"), ElementsAre(2));
  EXPECT_THAT(positions("0,,1"), ElementsAre(0));
  EXPECT_THAT(positions("0,1,"), ElementsAre(0, 1));
  EXPECT_THAT(positions("0,4,1"), ElementsAre(0));
  EXPECT_THAT(positions("0,99999999999999999999"), ElementsAre(0));
  EXPECT_THAT(positions("0,-1,0"), ElementsAre(0));
  EXPECT_THAT(positions("0,GPU-47f3"), ElementsAre(0));
  for (const char* none : {"", ",0", " ", "-1", "4", "none", "gpu-47f3", "+", "-"}) {
    EXPECT_THAT(positions(none), IsEmpty()) << none;
    EXPECT_NE(select(none).problem, "") << none;
  }
  EXPECT_FALSE(select("0,7").named_twice);
  EXPECT_THAT(select("0,7").problem, HasSubstr("no device 7 among the 4 devices"));
}

TEST(VisibleDevicesTest, ADeviceNamedTwiceIsAnError) {
  for (const char* twice : {"0,0", "0,1,2,1", "0,+0", "GPU-47f3,GPU-47f3a", "GPU-47f3,GPU-47f3"}) {
    EXPECT_THAT(positions(twice), IsEmpty()) << twice;
    EXPECT_TRUE(select(twice).named_twice) << twice;
    EXPECT_THAT(select(twice).problem, HasSubstr("second time")) << twice;
  }
}

TEST(VisibleDevicesTest, UuidsMayBeShortened) {
  EXPECT_THAT(positions(kUuids[1]), ElementsAre(1));
  EXPECT_THAT(positions("GPU-4,GPU-9e8d3"), ElementsAre(2, 0));
  EXPECT_THAT(positions("MIG-5bc"), ElementsAre(3));
}

// A server that does not answer has an empty text in place of a UUID.
TEST(VisibleDevicesTest, ATextThatIsNoUuidIsNotFound) {
  const std::vector<std::string> uuids = {"", "GPU", "GPU_47f3", "GPU-", kUuids[2]};
  std::string problem;
  EXPECT_EQ(position_of_uuid("GPU-47f3", uuids, &problem), 4u);
  EXPECT_EQ(position_of_uuid("GPU-5", uuids, &problem), std::nullopt);
  EXPECT_THAT(problem, HasSubstr("no device has the UUID"));
}

TEST(VisibleDevicesTest, OnlyTheDigitsOfAUuidCount) {
  EXPECT_THAT(positions("GPU-47F3A000-0000-0000-0000-000000000000"), ElementsAre(2));
  EXPECT_THAT(positions("MIG-47f3"), ElementsAre(2));
  EXPECT_THAT(positions(kUuids[2] + "0"), ElementsAre(2));
  EXPECT_THAT(positions(kUuids[2] + " ,GPU-5"), ElementsAre(2, 3));
}

TEST(VisibleDevicesTest, UuidsEndAtTheFirstInvalidEntry) {
  EXPECT_THAT(positions("GPU-4,GPU-6,GPU-9e8d3"), ElementsAre(2));
  EXPECT_THAT(positions("GPU-4,0"), ElementsAre(2));
  EXPECT_THAT(positions("GPU-4,MIG-6"), ElementsAre(2));
  EXPECT_THAT(positions("GPU-4,"), ElementsAre(2));
  EXPECT_THAT(positions("GPU-9e8d"), IsEmpty());
  EXPECT_THAT(select("GPU-9e8d").problem, HasSubstr("several devices"));
  EXPECT_THAT(positions("GPU-47f3x"), IsEmpty());
  EXPECT_THAT(positions(" GPU-47f3"), IsEmpty());
  EXPECT_THAT(positions("MIG-1"), IsEmpty());
  EXPECT_THAT(positions("MIG-" + kUuids[2]), IsEmpty());
  for (const char* none : {"GPU-", "MIG-"}) EXPECT_THAT(positions(none), IsEmpty()) << none;
}

TEST(VisibleDevicesTest, NumbersNeedNoUuids) {
  EXPECT_FALSE(lists_uuids("0,GPU-4"));
  EXPECT_TRUE(lists_uuids("GPU-4"));
  const auto never = [](size_t) -> std::string {
    ADD_FAILURE();
    return {};
  };
  EXPECT_THAT(select_devices("1", 2, never).positions, ElementsAre(1));
}

}  // namespace
}  // namespace rcuda::cuda
