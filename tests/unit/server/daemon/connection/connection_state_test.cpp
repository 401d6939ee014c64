#include "server/daemon/connection/connection_state.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using State = ConnectionState;

constexpr int kStates = static_cast<int>(kLastConnectionState) + 1;

TEST(ConnectionStateTest, EveryStateIsReachedAndCanEnd) {
  std::set<State> reached = {State::kReading};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const State from : std::set(reached)) {
      for (int to = 0; to < kStates; ++to) {
        if (may_follow(from, static_cast<State>(to))) reached.insert(static_cast<State>(to));
      }
    }
  }
  EXPECT_EQ(reached.size(), size_t{kStates});
  std::set<std::string> names;
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<State>(i);
    names.insert(to_string(state));
    EXPECT_EQ(may_follow(state, State::kEnded), state != State::kEnded) << to_string(state);
    EXPECT_FALSE(may_follow(state, state)) << to_string(state);
    EXPECT_FALSE(may_follow(State::kEnded, state)) << to_string(state);
  }
  EXPECT_EQ(names.size(), size_t{kStates});
}

// After a client has requested a session or an answer, the daemon reads no more messages of it.
TEST(ConnectionStateTest, NothingIsReadAfterTheLastMessage) {
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<State>(i);
    if (!waits(state) && state != State::kAnswering) continue;
    for (int to = 0; to < kStates; ++to) {
      EXPECT_FALSE(reads(static_cast<State>(to)) && may_follow(state, static_cast<State>(to)))
          << to_string(state);
    }
  }
}

// Clients that have applied are bounded by the queue and the permits of Admission. All other
// clients must be bounded as newcomers.
TEST(ConnectionStateTest, OnlyClientsThatHaveAppliedAreNoNewcomers) {
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<State>(i);
    EXPECT_EQ(is_newcomer(state),
              state != State::kQueued && state != State::kAdmitted && state != State::kEnded)
        << to_string(state);
  }
}

}  // namespace
}  // namespace rcuda::server
