#include "server/daemon/pool/pool_demand.h"

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const PoolDemand::Time kBegin{std::chrono::hours(1)};

TEST(PoolDemandTest, NobodyComes) {
  const PoolDemand demand(2, 8, seconds(10));
  EXPECT_EQ(demand.idle(kBegin), 2u);
  EXPECT_EQ(demand.next_change(kBegin), PoolDemand::Time::max());
}

TEST(PoolDemandTest, GrowsToWhatCameAtOnceAndShrinksLater) {
  PoolDemand demand(2, 8, seconds(10));
  for (int i = 0; i < 5; ++i) demand.taken(kBegin + milliseconds(i));
  EXPECT_EQ(demand.idle(kBegin + seconds(5)), 5u);
  const PoolDemand::Time end = demand.next_change(kBegin + seconds(5));
  EXPECT_EQ(end, kBegin + milliseconds(4) + seconds(10));
  EXPECT_EQ(demand.idle(end), 2u);
}

TEST(PoolDemandTest, StaysLargeWhileAsManyCome) {
  PoolDemand demand(2, 8, seconds(10));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 5; ++i) demand.taken(kBegin + seconds(8 * round));
  }
  EXPECT_EQ(demand.idle(kBegin + seconds(33)), 5u);
}

TEST(PoolDemandTest, FewerDoNotKeepItLarge) {
  PoolDemand demand(1, 8, seconds(10));
  for (int i = 0; i < 5; ++i) demand.taken(kBegin);
  for (int i = 1; i < 9; ++i) demand.taken(kBegin + seconds(2 * i));
  EXPECT_EQ(demand.idle(kBegin + seconds(16)), 1u);
}

TEST(PoolDemandTest, ShrinksToWhatCameSince) {
  PoolDemand demand(2, 8, seconds(10));
  for (int i = 0; i < 8; ++i) demand.taken(kBegin);
  for (int i = 0; i < 5; ++i) demand.taken(kBegin + seconds(8));
  for (int i = 0; i < 3; ++i) demand.taken(kBegin + seconds(9) + milliseconds(500));
  EXPECT_EQ(demand.idle(kBegin + seconds(9)), 8u);
  EXPECT_EQ(demand.next_change(kBegin + seconds(9)), kBegin + seconds(10));
  EXPECT_EQ(demand.idle(kBegin + seconds(10)), 5u);
  EXPECT_EQ(demand.next_change(kBegin + seconds(10)), kBegin + seconds(18));
  EXPECT_EQ(demand.idle(kBegin + seconds(18)), 3u);
  EXPECT_EQ(demand.idle(kBegin + seconds(20)), 2u);
}

// Waiting clients get workers one after the other, when these have started. They still count as
// simultaneous demand.
TEST(PoolDemandTest, ClientsThatWaitedCameWhenTheyBeganToWait) {
  PoolDemand demand(2, 8, seconds(10));
  for (int i = 0; i < 2; ++i) demand.taken(kBegin);
  demand.waiting(6, kBegin);
  PoolDemand::Time now = kBegin + seconds(2);
  for (size_t left = 6; left-- > 0; now += milliseconds(300)) {
    demand.taken(now);
    demand.waiting(left, now);
  }
  EXPECT_EQ(demand.idle(now), 8u);
}

TEST(PoolDemandTest, ClientsThatLeaveAreNoDemand) {
  PoolDemand demand(2, 8, seconds(10));
  demand.waiting(8, kBegin);
  demand.waiting(0, kBegin + milliseconds(1));
  EXPECT_EQ(demand.idle(kBegin + milliseconds(1)), 2u);
  demand.taken(kBegin + milliseconds(2));
  EXPECT_EQ(demand.idle(kBegin + milliseconds(2)), 2u);
}

TEST(PoolDemandTest, NoWorkerIsDueInPlaceOfOneWhoseSessionIsYoung) {
  PoolDemand demand(2, 8, seconds(10));
  EXPECT_EQ(demand.due(0, kBegin), 2u);
  EXPECT_EQ(demand.due(1, kBegin), 1u);
  EXPECT_EQ(demand.due(2, kBegin), 0u);
  EXPECT_EQ(demand.due(3, kBegin), 0u);
  for (int i = 0; i < 5; ++i) demand.taken(kBegin);
  EXPECT_EQ(demand.due(0, kBegin), 5u);
  EXPECT_EQ(demand.due(1, kBegin), 1u) << "the pool grows beside no young session";
}

TEST(PoolDemandTest, IsBounded) {
  PoolDemand demand(2, 8, seconds(10));
  for (int i = 0; i < 1000; ++i) demand.taken(kBegin);
  EXPECT_EQ(demand.idle(kBegin), 8u);
  PoolDemand small(4, 0, seconds(10));  // the largest size is below the usual size
  for (int i = 0; i < 1000; ++i) small.taken(kBegin);
  EXPECT_EQ(small.idle(kBegin), 4u);
}

TEST(PoolDemandTest, SessionsOneAfterTheOtherAreNoDemand) {
  PoolDemand demand(1, 8, seconds(10));
  for (int i = 0; i < 20; ++i) {
    demand.taken(kBegin + milliseconds(1001 * i));
    EXPECT_EQ(demand.idle(kBegin + milliseconds(1001 * i)), 1u);
  }
}

TEST(PoolDemandTest, WithoutAPoolNothingIsKept) {
  PoolDemand demand(0, 8, seconds(10));
  demand.taken(kBegin);
  EXPECT_EQ(demand.idle(kBegin), 0u);
}

}  // namespace
}  // namespace rcuda::server
