#include "common/transport/tcp/adaptive_spin.h"

#include <gtest/gtest.h>

namespace rcuda::transport {
namespace {

using std::chrono::microseconds;
constexpr microseconds kLeast(50);

TEST(AdaptiveSpinTest, StaysAtTheLeastWhileThatIsEnough) {
  AdaptiveSpin spin(kLeast);
  spin.waited(microseconds(49));
  EXPECT_EQ(spin.limit(), kLeast);
}

TEST(AdaptiveSpinTest, CoversALoopThatWouldSleepInEachTurn) {
  AdaptiveSpin spin(kLeast);
  spin.waited(microseconds(54));
  EXPECT_GT(spin.limit(), microseconds(54));
  spin.waited(microseconds(40));
  EXPECT_GT(spin.limit(), microseconds(54)) << "a shorter turn changes nothing";
}

TEST(AdaptiveSpinTest, GrowsToTheMost) {
  AdaptiveSpin spin(kLeast);
  for (const int time : {60, 120, 240, 480, 799, 799}) spin.waited(microseconds(time));
  EXPECT_EQ(spin.limit(), AdaptiveSpin::kMost);
}

TEST(AdaptiveSpinTest, FallsBackAfterAPause) {
  AdaptiveSpin spin(kLeast);
  spin.waited(microseconds(60));
  spin.waited(AdaptiveSpin::kMost);
  EXPECT_EQ(spin.limit(), kLeast);
}

TEST(AdaptiveSpinTest, ZeroStaysZero) {
  AdaptiveSpin spin(microseconds(0));
  spin.waited(microseconds(0));
  spin.waited(microseconds(10));
  EXPECT_EQ(spin.limit(), microseconds(0));
}

}  // namespace
}  // namespace rcuda::transport
