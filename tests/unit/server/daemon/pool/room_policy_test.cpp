#include "server/daemon/pool/room_policy.h"

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using namespace std::chrono_literals;
using Victims = std::vector<size_t>;

const RoomTime kNow = RoomTime() + 1h;

RoomCandidate candidate(std::chrono::seconds idle, uint64_t bytes, uint32_t device = 0) {
  return {.used_at = kNow - idle, .bytes = {{device, bytes}}};
}

RoomNeed need(uint64_t bytes, uint32_t priority = 0) { return {priority, {{0, bytes}}}; }

TEST(RoomPolicyTest, TheLongestIdleIsParkedFirstAndNoMoreThanNeeded) {
  const std::vector all{candidate(1s, 10), candidate(3s, 10), candidate(2s, 10)};
  EXPECT_EQ(choose_victims(all, need(10), kNow).victims, Victims({1}));
  EXPECT_EQ(choose_victims(all, need(11), kNow).victims, Victims({1, 2}));
  EXPECT_EQ(choose_victims(all, need(30), kNow).victims, Victims({1, 2, 0}));
}

TEST(RoomPolicyTest, NothingIsParkedInVain) {
  const RoomChoice choice = choose_victims({candidate(1s, 10), candidate(2s, 10)}, need(21), kNow);
  EXPECT_TRUE(choice.victims.empty());
  EXPECT_FALSE(choice.later);
}

TEST(RoomPolicyTest, OnlyTheDevicesThatLackRoomCount) {
  const std::vector all{candidate(9s, 10, 1), candidate(1s, 10)};
  EXPECT_EQ(choose_victims(all, need(10), kNow).victims, Victims({1}));
  const RoomNeed both{0, {{0, 5}, {1, 5}}};
  EXPECT_EQ(choose_victims(all, both, kNow).victims, Victims({0, 1}));
}

TEST(RoomPolicyTest, ASessionThatWokeLatelyOrHadWorkIsParkedLater) {
  RoomCandidate awake = candidate(9s, 10), busy = candidate(9s, 10);
  awake.stays_until = kNow + 2s;
  busy.busy_until = kNow + 1s;
  const RoomChoice choice = choose_victims({awake, busy}, need(20), kNow);
  EXPECT_TRUE(choice.victims.empty());
  EXPECT_EQ(choice.later, kNow + 1s);
  EXPECT_EQ(choose_victims({awake, busy}, need(20), kNow + 2s).victims, Victims({0, 1}));
  EXPECT_FALSE(choose_victims({awake, busy}, need(21), kNow).later);
  // If another session suffices, it is parked at once, although it has been idle for a shorter
  // time.
  EXPECT_EQ(choose_victims({awake, busy, candidate(1s, 10)}, need(10), kNow).victims, Victims({2}));
}

TEST(RoomPolicyTest, AHigherPriorityDoesNotWaitAndTakesTheLowestFirst) {
  RoomCandidate low = candidate(1s, 10), middle = candidate(9s, 10), busy = candidate(99s, 10);
  low.stays_until = middle.stays_until = kNow + 9s;
  middle.priority = 5;
  busy.busy_until = kNow + 1s;
  const std::vector all{middle, low, busy};
  EXPECT_EQ(choose_victims(all, need(10, 6), kNow).victims, Victims({1}));
  EXPECT_EQ(choose_victims(all, need(20, 6), kNow).victims, Victims({1, 0}));
  EXPECT_TRUE(choose_victims(all, need(20, 5), kNow).victims.empty());
  EXPECT_EQ(choose_victims(all, need(20, 5), kNow).later, kNow + 1s);
}

}  // namespace
}  // namespace rcuda::server
