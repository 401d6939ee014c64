// The progress of an event's latest record, as queries see it.
#include "client/session/event_state.h"

#include <optional>

#include <gtest/gtest.h>

#include "client/objects/kinds.h"
#include "client/session/news.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using wire::Custom;

class EventStateTest : public ::testing::Test {
 protected:
  EventStateTest()
      : event_(create<Event>({3, 1, &session()})), stream_(create<Stream>({5, 1, &session()})) {}
  ~EventStateTest() override {
    destroy(event_);
    destroy(stream_);
  }

  Session& session() { return *lone_.session; }
  Timeline& timeline() { return *stream_->timeline; }
  void record() {
    EventState::Recording recording(event_->state);
    recording.is_at(timeline(), timeline().count(), 0);
  }
  Progress progress() { return event_->state.progress(&record_, &result_); }
  // The worker answers that the record is not done.
  void find_pending() {
    EXPECT_EQ(progress(), Progress::kUnknown);
    event_->state.found_pending(record_, News::count());
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);  // the worker has received the command
  }
  void hold_watches() {
    lone_.puppet.on(Custom::kWatchEvent, [](const auto&) { return std::nullopt; });
  }
  size_t watches() { return lone_.puppet.taken(Custom::kWatchEvent).size(); }
  size_t words() {  // number of words that can be kept
    std::vector<Word> taken;
    while (const std::optional<Word> word = session().words().acquire_spare())
      taken.push_back(*word);
    for (const Word& word : taken) session().words().release(word);
    return taken.size();
  }

  LoneSession lone_;
  Event* const event_;
  Stream* const stream_;
  uint64_t record_ = 0;
  CUresult result_ = CUDA_SUCCESS;
};

TEST_F(EventStateTest, AWaitForTheStreamAnswersForIt) {
  record();
  EXPECT_EQ(progress(), Progress::kUnknown);
  timeline().advance(1);
  EXPECT_EQ(progress(), Progress::kDone);
  record();
  EXPECT_EQ(progress(), Progress::kUnknown);
}

TEST_F(EventStateTest, ARecordThatFailsLeavesTheEarlierOne) {
  record();
  EventState::Recording(event_->state).failed();
  EXPECT_EQ(progress(), Progress::kUnknown);
  timeline().advance(1);
  EXPECT_EQ(progress(), Progress::kDone);
  // A record without a known place in a stream: only the worker knows whether it is done.
  { const EventState::Recording elsewhere(event_->state); }
  EventState::Recording(event_->state).failed();
  EXPECT_EQ(progress(), Progress::kUnknown);
}

TEST_F(EventStateTest, ItKeepsItsWordUntilItIsDone) {
  hold_watches();
  const size_t all = words();
  record();
  find_pending();
  EXPECT_EQ(progress(), Progress::kPending);
  EXPECT_EQ(words(), all - 1);
  lone_.puppet.on(Custom::kWatchEvent, nullptr);
  record();  // the earlier answer does not apply to this record
  find_pending();
  EXPECT_EQ(progress(), Progress::kDone);
  EXPECT_EQ(words(), all);
  EXPECT_EQ(progress(), Progress::kDone);
  EXPECT_TRUE(timeline().is_level());
}

TEST_F(EventStateTest, WhatWasLearnedSinceMakesItAskAgainWithoutAnotherWatch) {
  hold_watches();
  record();
  find_pending();
  News::add();
  find_pending();
  EXPECT_EQ(progress(), Progress::kPending);
  EXPECT_EQ(watches(), 1u);
}

TEST_F(EventStateTest, AnotherThreadsAnswerIsNoneForALaterRecord) {
  record();
  EXPECT_EQ(progress(), Progress::kUnknown);
  const uint64_t asked = record_;
  record();
  event_->state.found_done(asked);
  EXPECT_EQ(progress(), Progress::kUnknown);
  EXPECT_FALSE(timeline().has_reached(1));
}

// One of the two records is the latest, but the client does not know which.
TEST_F(EventStateTest, RecordsOfTwoThreadsAtOnceAreLeftToTheWorker) {
  {
    EventState::Recording first(event_->state), second(event_->state);
    second.is_at(timeline(), timeline().count(), 0);
    first.is_at(timeline(), timeline().count(), 0);
  }
  timeline().advance(2);
  EXPECT_EQ(progress(), Progress::kUnknown);
  event_->state.found_done(record_);
  EXPECT_EQ(progress(), Progress::kDone);
}

TEST_F(EventStateTest, WhatGraphsRecordOnlyTheWorkerKnows) {
  event_->state.leave_to_worker();
  record();
  timeline().advance(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(progress(), Progress::kUnknown);
    event_->state.found_done(record_);
  }
  event_->state.found_pending(record_, News::count());
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  EXPECT_EQ(watches(), 0u);
}

TEST_F(EventStateTest, APendingRecordMayBeLeftToTheWorker) {
  hold_watches();
  record();
  find_pending();
  EXPECT_EQ(progress(), Progress::kPending);
  event_->state.leave_to_worker();
  EXPECT_EQ(progress(), Progress::kUnknown);
}

TEST_F(EventStateTest, AWaitForItIsAnAnswer) {
  record();
  const uint64_t news = News::count();
  EXPECT_EQ(event_->state.wait(), CUDA_SUCCESS);
  EXPECT_NE(News::count(), news);
  EXPECT_EQ(progress(), Progress::kDone);
  EXPECT_TRUE(timeline().is_level());
}

TEST_F(EventStateTest, AWaitDuringWhichItIsRecordedAgainDoesNotAnswerForItsFirstRecord) {
  lone_.puppet.on(Custom::kWatchEvent, [this](const auto&) {
    record();
    return test::PuppetServer::Answer{CUDA_SUCCESS, {}};
  });
  record();
  EXPECT_EQ(event_->state.wait(), CUDA_SUCCESS);
  EXPECT_FALSE(timeline().is_level());
}

// Otherwise each poll of an unfinished event would be a round trip.
TEST_F(EventStateTest, AQueryThatFindsItPendingIsNoNews) {
  using Answer = test::PuppetServer::Answer;
  lone_.puppet.on(Custom::kWatchEvent, [](const auto& command) -> std::optional<Answer> {
    const auto body = command.template as<wire::WatchEventBody>();
    if (body.purpose != wire::WatchFor::kQuery) return std::nullopt;
    return Answer{CUDA_ERROR_NOT_READY, {}};
  });
  record();
  EXPECT_EQ(progress(), Progress::kUnknown);
  const uint64_t news = News::count();
  EXPECT_EQ(event_->state.query(event_->state.place()), CUDA_ERROR_NOT_READY);
  event_->state.found_pending(record_, news);
  EXPECT_EQ(progress(), Progress::kPending);
}

TEST_F(EventStateTest, WithoutAWordTheWorkerIsAskedEachTime) {
  while (session().words().acquire_spare()) {
  }
  record();
  find_pending();
  find_pending();
  EXPECT_EQ(watches(), 0u);
  EXPECT_EQ(event_->state.wait(), CUDA_SUCCESS);
}

TEST_F(EventStateTest, AnErrorOfItsWorkIsTheAnswer) {
  lone_.puppet.on(Custom::kWatchEvent, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_LAUNCH_FAILED, {}};
  });
  record();
  find_pending();
  EXPECT_EQ(progress(), Progress::kDone);
  EXPECT_EQ(result_, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(timeline().is_level());
}

TEST_F(EventStateTest, ItMayOutliveItsStream) {
  auto* other = create<Stream>({6, 1, &session()});
  {
    EventState::Recording recording(event_->state);
    recording.is_at(*other->timeline, other->timeline->count(), 0);
  }
  destroy(other);
  EXPECT_EQ(progress(), Progress::kUnknown);
  event_->state.found_done(record_);
  EXPECT_EQ(progress(), Progress::kDone);
}

}  // namespace
}  // namespace rcuda::client
