#include "server/worker/session_time.h"

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using std::chrono::seconds;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStart = 5 * kSecond;

bool rests() { return false; }

TEST(SessionTime, WithoutLimitsNothingIsEverDue) {
  const SessionTime time({}, kStart);
  EXPECT_FALSE(time.limits());
  EXPECT_EQ(time.due(), SessionTime::kNever);
  EXPECT_EQ(time.last_end(), SessionTime::kNever);
}

TEST(SessionTime, TheWarningComesATenthBeforeTheEndAtMostAMinute) {
  EXPECT_EQ(SessionTime({.session_time = seconds(50)}, kStart).due(), kStart + 45 * kSecond);
  EXPECT_EQ(SessionTime({.session_time = seconds(7200)}, kStart).due(), kStart + 7140 * kSecond);
  EXPECT_EQ(SessionTime({.idle_time = seconds(50)}, kStart).due(), kStart + 45 * kSecond);
}

TEST(SessionTime, IsPolledForTheEarlierOfTheTwo) {
  SessionTime time({.session_time = seconds(100), .idle_time = seconds(50)}, kStart);
  EXPECT_EQ(time.due(), kStart + 45 * kSecond);
  time.used(kStart + 60 * kSecond);
  EXPECT_EQ(time.due(), kStart + 90 * kSecond);
  EXPECT_FALSE(time.poll(kStart + 89 * kSecond, rests));
  EXPECT_FALSE(time.poll(kStart + 90 * kSecond, rests)->ends);
  EXPECT_FALSE(time.poll(kStart + 91 * kSecond, rests));  // one warning only
  EXPECT_TRUE(time.poll(kStart + 100 * kSecond, rests)->ends);
}

TEST(SessionTime, WorkIsAskedForOnlyNearTheEnd) {
  SessionTime time({.idle_time = seconds(100)}, kStart);
  int asked = 0;
  const auto works = [&] {
    ++asked;
    return true;
  };
  EXPECT_FALSE(time.poll(kStart + 50 * kSecond, works));
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(time.poll(kStart + 95 * kSecond, works));
  EXPECT_EQ(asked, 1);
}

// The exact end of the work is not known, so the idle time starts when a query finds the session
// idle.
TEST(SessionTime, AnIdleSessionNeverGetsLessThanItsLimit) {
  SessionTime time({.idle_time = seconds(100)}, kStart);
  EXPECT_FALSE(time.poll(kStart + 90 * kSecond, [] { return true; }));
  EXPECT_EQ(time.due(), kStart + 180 * kSecond);
  EXPECT_FALSE(time.poll(kStart + 180 * kSecond, rests));
  EXPECT_EQ(time.due(), kStart + 270 * kSecond);
  EXPECT_FALSE(time.poll(kStart + 270 * kSecond, rests)->ends);
  EXPECT_TRUE(time.poll(kStart + 280 * kSecond, rests)->ends);
}

TEST(SessionTime, HugeLimitsDoNotOverflow) {
  const SessionTime time({.session_time = std::chrono::nanoseconds::max(),
                          .idle_time = std::chrono::nanoseconds::max()},
                         kStart);
  EXPECT_GT(time.due(), kStart);
  EXPECT_GT(time.last_end(), kStart);
}

}  // namespace
}  // namespace rcuda::server
