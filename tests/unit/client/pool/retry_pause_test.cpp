#include "client/pool/retry_pause.h"

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

}  // namespace
}  // namespace rcuda::client
