#include "p2p/copy/copy_state.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::p2p {
namespace {

using State = CopyState;
using Event = CopyEvent;

std::vector<State> all_states() {
  std::vector<State> states;
  for (int i = 0; i <= static_cast<int>(kLastCopyState); ++i) {
    states.push_back(static_cast<State>(i));
  }
  return states;
}

std::vector<Event> all_events() {
  std::vector<Event> events;
  for (int i = 0; i <= static_cast<int>(kLastCopyEvent); ++i) {
    events.push_back(static_cast<Event>(i));
  }
  return events;
}

State run(std::vector<Event> events) {
  State state = State::kAnnounced;
  for (const Event event : events) {
    const auto next = after(state, event);
    EXPECT_TRUE(next) << "event " << static_cast<int>(event) << " in state " << to_string(state);
    if (next) state = *next;
  }
  return state;
}

TEST(CopyStateTest, EveryWayOfACopyEndsWithDone) {
  const std::vector<Event> begin = {Event::kCommand, Event::kStreamReached, Event::kPlan};
  const std::vector<std::vector<Event>> ways = {
      {Event::kStage, Event::kAllSent},
      {Event::kWant, Event::kStage, Event::kAllSent},
      {Event::kPull},
      {Event::kPull, Event::kStage, Event::kAllSent},
      {Event::kStage},
      {Event::kAllSent},
  };
  for (const auto& way : ways) {
    std::vector<Event> events = begin;
    events.insert(events.end(), way.begin(), way.end());
    events.push_back(Event::kDone);
    EXPECT_EQ(run(events), State::kDone);
  }
}

TEST(CopyStateTest, EveryStateIsReachedAndCanEnd) {
  std::set<State> reached = {State::kAnnounced};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const State state : std::set<State>(reached)) {
      for (const Event event : all_events()) {
        if (const auto next = after(state, event)) reached.insert(*next);
      }
    }
  }
  EXPECT_EQ(reached.size(), all_states().size());
  for (const State state : all_states()) {
    const State lost = state == State::kDone ? State::kDone : State::kLost;
    EXPECT_EQ(after(state, Event::kPeerLost), lost) << to_string(state);
  }
}

TEST(CopyStateTest, AbortAndRefusalMeetInEitherOrder) {
  EXPECT_EQ(run({Event::kCommand, Event::kFailure, Event::kAbort, Event::kRefusal}),
            State::kClosing);
  EXPECT_EQ(run({Event::kCommand, Event::kFailure, Event::kRefusal, Event::kAbort}),
            State::kClosing);
  EXPECT_EQ(run({Event::kRefusal, Event::kCommand, Event::kAbort}), State::kClosing);
}

TEST(CopyStateTest, AbortIsSentOnceAndAPeerEndsACopyOnce) {
  for (const State state : all_states()) {
    EXPECT_EQ(after(state, Event::kAbort).has_value(), owes_abort(state)) << to_string(state);
    if (const auto next = after(state, Event::kAbort)) {
      EXPECT_FALSE(after(*next, Event::kAbort)) << to_string(state);
    }
    for (const Event end : {Event::kDone, Event::kRefusal}) {
      const auto next = after(state, end);
      if (!next) continue;
      EXPECT_FALSE(after(*next, Event::kDone)) << to_string(state);
      EXPECT_FALSE(after(*next, Event::kRefusal)) << to_string(state);
    }
  }
}

TEST(CopyStateTest, AFailedCopyStartsNothing) {
  for (const State state : all_states()) {
    if (!fails(state)) continue;
    for (const Event event : all_events()) {
      const auto next = after(state, event);
      if (!next) continue;
      EXPECT_TRUE(fails(*next) || *next == State::kDone) << to_string(state);
    }
    EXPECT_FALSE(after(state, Event::kStage)) << to_string(state);
    EXPECT_FALSE(after(state, Event::kPull)) << to_string(state);
  }
}

TEST(CopyStateTest, NothingIsDoneBeforeItBegan) {
  for (const State state : all_states()) {
    if (!before_begin(state)) continue;
    EXPECT_FALSE(after(state, Event::kDone)) << to_string(state);
  }
  EXPECT_FALSE(after(State::kAsking, Event::kDone));
}

}  // namespace
}  // namespace rcuda::p2p
