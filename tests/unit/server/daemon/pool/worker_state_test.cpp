#include "server/daemon/pool/worker_state.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using State = WorkerState;

constexpr int kStates = static_cast<int>(kLastWorkerState) + 1;

// The states that a worker can reach from `begin`, except the end.
std::set<State> reachable(State begin) {
  std::set<State> states = {begin};
  for (size_t before = 0; before != states.size();) {
    before = states.size();
    for (const State from : std::set(states)) {
      for (int to = 0; to < kStates; ++to) {
        if (may_follow(from, static_cast<State>(to))) states.insert(static_cast<State>(to));
      }
    }
  }
  return states;
}

TEST(WorkerStateTest, EveryStateIsReachedAndCanEnd) {
  EXPECT_EQ(reachable(State::kStarting).size(), size_t{kStates});
  std::set<std::string> names;
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<State>(i);
    names.insert(to_string(state));
    EXPECT_EQ(may_follow(state, State::kEnded), state != State::kEnded) << to_string(state);
    EXPECT_FALSE(may_follow(state, state)) << to_string(state);
  }
  EXPECT_EQ(names.size(), size_t{kStates});
  EXPECT_EQ(reachable(State::kEnded), std::set{State::kEnded});
}

// WorkerPool::enter() relies on this to notice the end of each session.
TEST(WorkerStateTest, ASessionBeginsIdleAndItsWorkerEndsWithIt) {
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<State>(i);
    EXPECT_EQ(may_follow(state, State::kBusy), state == State::kIdle) << to_string(state);
    EXPECT_EQ(may_follow(State::kBusy, state), state == State::kEnded) << to_string(state);
  }
}

}  // namespace
}  // namespace rcuda::server
