#include "client/pool/retries.h"

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RetryPauseTest, GrowsToTenSeconds) {
  RetryPause pause;
  for (const int expected : {1, 2, 4, 8, 10, 10}) {
    EXPECT_EQ(pause.next(std::chrono::hours(1)), seconds(expected));
  }
}

TEST(RetryPauseTest, EndsWithTheWaitingTime) {
  RetryPause pause;
  EXPECT_EQ(pause.next(milliseconds(1'001)), seconds(1));
  EXPECT_EQ(pause.next(milliseconds(1'500)), milliseconds(1'500));
  EXPECT_EQ(pause.next(milliseconds(300)), milliseconds(300));
  EXPECT_EQ(pause.next(seconds(0)), seconds(0));
  EXPECT_EQ(pause.next(milliseconds(-5)), seconds(0));
}

TEST(RetriesTest, AllServersShareOneDeadline) {
  const auto deadline = std::chrono::steady_clock::now() + milliseconds(300);
  const Status unavailable(Code::kUnavailable, "no answer");
  Retries first(deadline), second(deadline);
  int waits = 0;
  EXPECT_FALSE(first.again(Status(Code::kDenied, "not served"), [&] { ++waits; }));
  EXPECT_EQ(waits, 0);
  EXPECT_TRUE(first.again(unavailable, [&] { ++waits; }));
  EXPECT_EQ(waits, 1);
  EXPECT_FALSE(first.again(unavailable));
  EXPECT_FALSE(second.again(unavailable));
}

}  // namespace
}  // namespace rcuda::client
