#include "common/transport/tcp/bulk_state.h"

#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::transport {
namespace {

using Stream = StreamState;
using Piece = PieceState;
using Event = PieceEvent;

template <typename State>
std::vector<State> all(State last) {
  std::vector<State> values;
  for (int i = 0; i <= static_cast<int>(last); ++i) values.push_back(static_cast<State>(i));
  return values;
}

template <typename State, typename Event, size_t kRows>
std::set<State> reached_from(std::set<State> states,
                             const Transition<State, Event> (&table)[kRows]) {
  for (size_t before = 0; before != states.size();) {
    before = states.size();
    for (const auto& row : table) {
      if (states.contains(row.from)) states.insert(row.to);
    }
  }
  return states;
}

std::optional<Stream> next(Stream state, StreamEvent event) {
  return after(kStreamTransitions, state, event);
}

// The state after the events; no value if one of the events is impossible in its state.
std::optional<Piece> run(Piece state, const std::vector<Event>& events) {
  std::optional<Piece> now = state;
  for (const Event event : events) {
    if (now) now = after(kPieceTransitions, *now, event);
  }
  return now;
}

TEST(StreamStateTest, EveryStateIsReachedAndStops) {
  const std::vector<Stream> states = all(kLastStreamState);
  EXPECT_EQ(reached_from({Stream::kMade}, kStreamTransitions).size(), states.size());
  for (const Stream state : states) {
    const auto stopped = next(state, StreamEvent::kStop);
    EXPECT_TRUE(stopped && is_stopped(*stopped)) << to_string(state);
  }
}

TEST(StreamStateTest, AStreamThatStoppedOrFailedNeverRunsAgain) {
  const std::set<Stream> later =
      reached_from({Stream::kFailed, Stream::kStopped}, kStreamTransitions);
  EXPECT_EQ(later, (std::set<Stream>{Stream::kFailed, Stream::kStopped, Stream::kEnded}));
}

// If a stream that is not stopped could lose its last thread, a caller would get its memory back
// while a thread still uses it.
TEST(StreamStateTest, OnlyAStoppedStreamLosesItsLastThread) {
  for (const Stream state : all(kLastStreamState)) {
    EXPECT_EQ(next(state, StreamEvent::kLeft).has_value(), state == Stream::kStopped)
        << to_string(state);
  }
}

TEST(StreamStateTest, NothingFailsBeforeTheStartOrAfterTheEnd) {
  EXPECT_FALSE(next(Stream::kMade, StreamEvent::kFailure));
  EXPECT_FALSE(next(Stream::kEnded, StreamEvent::kFailure));
  for (const Stream state : all(kLastStreamState)) {
    EXPECT_EQ(next(state, StreamEvent::kStart).has_value(), state == Stream::kMade);
  }
}

TEST(PieceStateTest, EveryWayOfAPieceEndsOnce) {
  const std::vector<std::pair<Piece, std::vector<Event>>> ways = {
      {Piece::kSending, {Event::kSent, Event::kDone}},
      {Piece::kSending, {Event::kDone, Event::kSent}},
      {Piece::kSending, {Event::kRefusal, Event::kSent}},
      {Piece::kSending, {Event::kSent, Event::kRefusal}},
      {Piece::kAnswered, {Event::kSent}},  // carries an immediate
      {Piece::kAsking, {Event::kSent, Event::kData, Event::kDone}},
      {Piece::kAsking, {Event::kData, Event::kSent, Event::kDone}},
      {Piece::kAsking, {Event::kData, Event::kDone, Event::kSent}},
      {Piece::kAsking, {Event::kSent, Event::kRefusal}},
      {Piece::kAsking, {Event::kRefusal, Event::kSent}},
      {Piece::kAsking, {Event::kSent, Event::kData, Event::kRefusal}},
  };
  for (const auto& [begin, events] : ways) {
    EXPECT_EQ(run(begin, events), Piece::kOver);
    for (size_t early = 0; early < events.size(); ++early) {
      EXPECT_NE(run(begin, {events.begin(), events.begin() + early}), Piece::kOver);
    }
  }
  for (const Event event : all(kLastPieceEvent)) EXPECT_FALSE(run(Piece::kOver, {event}));
}

TEST(PieceStateTest, APieceIsNeverOverWhileItIsSent) {
  for (const Piece state : {Piece::kAsking, Piece::kSending, Piece::kAnswered}) {
    for (const Event event : {Event::kData, Event::kDone, Event::kRefusal}) {
      EXPECT_NE(run(state, {event}), Piece::kOver) << to_string(state);
    }
  }
}

TEST(PieceStateTest, APeerThatLiesFindsNoTransition) {
  EXPECT_FALSE(run(Piece::kSending, {Event::kData}));  // a write gets no data
  EXPECT_FALSE(run(Piece::kSent, {Event::kData}));
  EXPECT_FALSE(run(Piece::kAsked, {Event::kDone}));  // a read's end without its data
  EXPECT_FALSE(run(Piece::kAsking, {Event::kDone}));
  EXPECT_FALSE(run(Piece::kAsked, {Event::kData, Event::kData}));
  EXPECT_FALSE(run(Piece::kAsking, {Event::kRefusal, Event::kData}));
  EXPECT_FALSE(run(Piece::kSending, {Event::kDone, Event::kDone}));
  EXPECT_FALSE(run(Piece::kAnswered, {Event::kDone}));  // a write with an immediate has no outcome
}

TEST(PieceStateTest, EveryStateIsReached) {
  EXPECT_EQ(reached_from({Piece::kAsking}, kPieceTransitions).size(), all(kLastPieceState).size());
}

}  // namespace
}  // namespace rcuda::transport
