#include "p2p/copy/incoming_state.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::p2p {
namespace {

using State = IncomingState;
using Event = IncomingEvent;

std::vector<State> all_states() {
  std::vector<State> states;
  for (int i = 0; i <= static_cast<int>(kLastIncomingState); ++i) {
    states.push_back(static_cast<State>(i));
  }
  return states;
}

std::vector<Event> all_events() {
  std::vector<Event> events;
  for (int i = 0; i <= static_cast<int>(kLastIncomingEvent); ++i) {
    events.push_back(static_cast<Event>(i));
  }
  return events;
}

State run(const std::vector<Event>& events) {
  State state = State::kAnnounced;
  for (const Event event : events) {
    const auto next = after(state, event);
    EXPECT_TRUE(next) << "event " << static_cast<int>(event) << " in state " << to_string(state);
    if (next) state = *next;
  }
  return state;
}

TEST(IncomingStateTest, EveryWayOfACopyEndsWithDone) {
  const std::vector<std::vector<Event>> ways = {
      {Event::kChunk},
      {Event::kOffer, Event::kChunk},
      {Event::kPull},
  };
  for (const auto& way : ways) {
    std::vector<Event> events = {Event::kCommand, Event::kStreamReached};
    events.insert(events.end(), way.begin(), way.end());
    events.push_back(Event::kDone);
    EXPECT_EQ(run(events), State::kDone);
  }
}

TEST(IncomingStateTest, EveryStateIsReachedAndCanEnd) {
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

TEST(IncomingStateTest, AbortAndRefusalMeetInEitherOrder) {
  EXPECT_EQ(run({Event::kCommand, Event::kFailure, Event::kRefusal, Event::kAbort}),
            State::kClosing);
  EXPECT_EQ(run({Event::kCommand, Event::kFailure, Event::kAbort, Event::kRefusal}),
            State::kClosing);
  EXPECT_EQ(run({Event::kAbort, Event::kRefusal, Event::kCommand}), State::kClosing);
}

TEST(IncomingStateTest, DoneIsSentOnceAndTheSenderAbortsOnce) {
  for (const State state : all_states()) {
    EXPECT_EQ(after(state, Event::kRefusal).has_value(), owes_done(state)) << to_string(state);
    for (const Event once : {Event::kRefusal, Event::kAbort}) {
      if (const auto next = after(state, once); next && *next != State::kLost) {
        EXPECT_FALSE(after(*next, once)) << to_string(state);
      }
    }
    EXPECT_FALSE(is_aborted(state) && after(state, Event::kAbort)) << to_string(state);
  }
}

TEST(IncomingStateTest, AFailedCopyStartsNothing) {
  for (const State state : all_states()) {
    EXPECT_FALSE(fails(state) && may_land(state)) << to_string(state);
    for (const Event start : {Event::kOffer, Event::kPull, Event::kChunk}) {
      EXPECT_TRUE(!after(state, start) || may_land(state)) << to_string(state);
    }
    for (const Event event : all_events()) {
      const auto next = after(state, event);
      EXPECT_TRUE(!fails(state) || !next || fails(*next)) << to_string(state);
    }
  }
}

TEST(IncomingStateTest, NothingIsDoneBeforeItLanded) {
  for (const State state : all_states()) {
    const bool landing = state == State::kLanding || state == State::kPulling;
    EXPECT_EQ(after(state, Event::kDone).has_value(), landing) << to_string(state);
  }
}

}  // namespace
}  // namespace rcuda::p2p
