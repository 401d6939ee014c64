#include "common/transport/arrivals.h"

#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::transport {
namespace {

constexpr RegionId kRegion{5}, kOther{6};

class ArrivalsTest : public ::testing::Test {
 protected:
  // Returns the variable in which the outcome will be stored.
  const std::optional<Status>& expect(uint32_t immediate, uint64_t bytes,
                                      RegionId region = kRegion) {
    auto outcome = std::make_shared<std::optional<Status>>();
    outcomes_.push_back(outcome);
    arrivals_.expect(immediate, region, bytes, [outcome](const Status& status) {
      EXPECT_FALSE(*outcome);
      *outcome = status;
    });
    return *outcome;
  }

  Arrivals arrivals_;
  std::vector<std::shared_ptr<std::optional<Status>>> outcomes_;
};

TEST_F(ArrivalsTest, AWriteEndsWithItsLastByte) {
  const auto& outcome = expect(1, 10);
  arrivals_.arrived(2, 10);
  arrivals_.arrived(1, 4);
  EXPECT_FALSE(outcome);
  arrivals_.arrived(1, 6);
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->ok());
}

TEST_F(ArrivalsTest, BytesMayComeBeforeTheMessage) {
  arrivals_.arrived(1, 10);
  arrivals_.arrived(2, 4);
  const auto& whole = expect(1, 10);
  const auto& begun = expect(2, 10);
  ASSERT_TRUE(whole);
  EXPECT_TRUE(whole->ok());
  EXPECT_FALSE(begun);
  arrivals_.arrived(2, 6);
  ASSERT_TRUE(begun);
  EXPECT_TRUE(begun->ok());
}

TEST_F(ArrivalsTest, CountsTheWritesThatHaveBeenNamedAndHaveNotArrived) {
  arrivals_.arrived(1, 4);
  EXPECT_EQ(arrivals_.expected(), 0u);
  expect(1, 10);
  expect(2, 10);
  EXPECT_EQ(arrivals_.expected(), 2u);
  arrivals_.arrived(1, 6);
  EXPECT_EQ(arrivals_.expected(), 1u);
  arrivals_.withdraw(kRegion);
  EXPECT_EQ(arrivals_.expected(), 0u);
}

TEST_F(ArrivalsTest, ANumberIsUsedAgain) {
  for (int i = 0; i < 3; ++i) {
    const auto& outcome = expect(1, 10);
    EXPECT_FALSE(outcome);
    arrivals_.arrived(1, 10);
    EXPECT_TRUE(outcome);
  }
}

TEST_F(ArrivalsTest, AWriteThatIsNamedTwiceIsRefusedOnce) {
  const auto& first = expect(1, 10);
  const auto& second = expect(1, 10);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->code(), Code::kProtocol);
  EXPECT_FALSE(first);
  arrivals_.arrived(1, 10);
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->ok());
}

TEST_F(ArrivalsTest, NobodyWaitsForAWithdrawnRegion) {
  const auto& outcome = expect(1, 10);
  const auto& other = expect(2, 10, kOther);
  arrivals_.withdraw(kRegion);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->code(), Code::kNotFound);
  EXPECT_FALSE(other);
}

TEST_F(ArrivalsTest, NobodyWaitsAfterTheEnd) {
  const auto& before = expect(1, 10);
  arrivals_.end();
  ASSERT_TRUE(before);
  EXPECT_EQ(before->code(), Code::kUnavailable);
  const auto& after = expect(2, 10);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->code(), Code::kUnavailable);
}

TEST_F(ArrivalsTest, APeerThatWritesWithoutEndIsNotWaitedFor) {
  const auto& known = expect(1, 10);
  for (size_t i = 0; i < Arrivals::kMostEarly; ++i) {
    arrivals_.arrived(static_cast<uint32_t>(i + 2), 1);
  }
  EXPECT_FALSE(known);
  arrivals_.arrived(static_cast<uint32_t>(Arrivals::kMostEarly + 2), 1);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->code(), Code::kProtocol);
  const auto& early = expect(2, 1);
  ASSERT_TRUE(early);
  EXPECT_TRUE(early->ok());
  EXPECT_TRUE(expect(3, 2));
}

}  // namespace
}  // namespace rcuda::transport
