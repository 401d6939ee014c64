#include "client/mirror/mirror_stage.h"

#include <optional>
#include <set>

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

using Stage = MirrorStage;
using Event = MirrorEvent;

std::optional<Stage> next(Stage stage, Event event) {
  return after(kMirrorTransitions, stage, event);
}

TEST(MirrorStageTest, EveryStageIsReached) {
  std::set<Stage> reached = {Stage::kNew};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const auto& row : kMirrorTransitions) {
      if (reached.contains(row.from)) reached.insert(row.to);
    }
  }
  EXPECT_EQ(reached.size(), static_cast<size_t>(kLastMirrorStage) + 1);
}

// After a failed fetch the mirror is stale until a fetch succeeds. Otherwise the next push would
// send bytes that are older than the GPU's.
TEST(MirrorStageTest, OnlyAFetchEndsAFailedOne) {
  for (int i = 0; i <= static_cast<int>(kLastMirrorEvent); ++i) {
    const auto event = static_cast<Event>(i);
    EXPECT_EQ(next(Stage::kStale, event) == Stage::kCurrent, event == Event::kFetch)
        << to_string(event);
  }
}

TEST(MirrorStageTest, WhatWasNeverExchangedIsNotStale) {
  EXPECT_EQ(next(Stage::kNew, Event::kFailedFetch), Stage::kNew);
  EXPECT_EQ(next(Stage::kNew, Event::kExchange), Stage::kCurrent);
}

TEST(MirrorStageTest, MemoryIsRemovedOnceAndNotExchangedAfterwards) {
  for (const Stage stage : {Stage::kNew, Stage::kCurrent, Stage::kStale}) {
    EXPECT_EQ(next(stage, Event::kRemoval), Stage::kEnded) << to_string(stage);
  }
  EXPECT_FALSE(next(Stage::kEnded, Event::kRemoval));
  EXPECT_FALSE(next(Stage::kEnded, Event::kExchange));
  EXPECT_FALSE(next(Stage::kEnded, Event::kFetch));
}

}  // namespace
}  // namespace rcuda::client
