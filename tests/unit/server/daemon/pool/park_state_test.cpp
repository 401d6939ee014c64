#include "server/daemon/pool/park_state.h"

#include <set>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using State = ParkState;

constexpr int kStates = static_cast<int>(kLastParkState) + 1;

TEST(ParkStateTest, EveryStateIsReachedAndLeadsBack) {
  for (int begin = 0; begin < kStates; ++begin) {
    std::set<State> reached = {static_cast<State>(begin)};
    for (size_t before = 0; before != reached.size();) {
      before = reached.size();
      for (const State from : std::set(reached)) {
        for (int to = 0; to < kStates; ++to) {
          if (may_follow(from, static_cast<State>(to))) reached.insert(static_cast<State>(to));
        }
      }
    }
    EXPECT_EQ(reached.size(), size_t{kStates}) << begin;
    EXPECT_FALSE(may_follow(static_cast<State>(begin), static_cast<State>(begin))) << begin;
  }
}

// Parked memory comes back only after a helper or a worker has succeeded.
TEST(ParkStateTest, AParkedSessionWakesBeforeItIsActive) {
  EXPECT_FALSE(may_follow(State::kParked, State::kActive));
  EXPECT_FALSE(may_follow(State::kWaiting, State::kActive));
  EXPECT_TRUE(may_follow(State::kWaking, State::kWaiting));  // a worker has found no room
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<State>(i);
    EXPECT_EQ(may_follow(state, State::kParked), state == State::kParking) << i;
    EXPECT_EQ(may_follow(state, State::kWaking), state == State::kWaiting) << i;
    EXPECT_EQ(is_away(state),
              state == State::kParked || state == State::kWaiting || state == State::kWaking)
        << i;
  }
}

}  // namespace
}  // namespace rcuda::server
