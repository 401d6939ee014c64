// Progress of events and streams that is told by completion words, of which there are only so many.
#include "client/session/progress.h"

#include <optional>

#include <gtest/gtest.h>

#include "client/session/pace.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest()
      : context_(create<Context>({1, 1, &session()})),
        event_(create<Event>({1, 1, &session()})),
        stream_(create<Stream>({1, 1, &session()})) {
    session().remember(context_);
  }
  ~ProgressTest() override {
    destroy(stream_);
    destroy(event_);
    destroy(context_);
  }

  Session& session() { return *lone_.session; }
  Progress event_progress() {
    CUresult result = CUDA_SUCCESS;
    return progress_of(session(), *event_, event_state(*event_), &result);
  }
  void watch_event() {
    client::watch_event(session(), *event_, event_state(*event_), session().learned());
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);  // the worker has seen it
  }

  LoneSession lone_;
  Context* const context_;
  Event* const event_;
  Stream* const stream_;
};

TEST_F(ProgressTest, AnEventKeepsItsWordUntilItIsDone) {
  lone_.puppet.on(wire::Custom::kWatchEvent, [](const auto&) { return std::nullopt; });
  watch_event();
  EXPECT_EQ(event_progress(), Progress::kPending);
  EXPECT_NE(event_->progress.word.load(), 0u);
  lone_.puppet.on(wire::Custom::kWatchEvent, nullptr);
  event_->progress.uses.fetch_add(2);  // recorded again
  watch_event();
  EXPECT_EQ(event_progress(), Progress::kDone);
  EXPECT_EQ(event_->progress.word.load(), 0u);
  EXPECT_EQ(event_progress(), Progress::kDone);
}

TEST_F(ProgressTest, WithoutAWordTheWorkerIsAskedAndWaitsGoOn) {
  while (session().acquire_spare_word()) {
  }
  watch_event();
  EXPECT_EQ(event_progress(), Progress::kUnknown);
  EXPECT_EQ(watch_stream(session(), *stream_, 1, 1, 0, kNotAsked), 0u);
  for (int i = 0; i < 3000; ++i) pace(session(), *stream_, 1);  // more than a queue takes
  EXPECT_EQ(await_event(session(), *event_), CUDA_SUCCESS);
  EXPECT_EQ(session().synchronize(1, 0), CUDA_SUCCESS);
}

}  // namespace
}  // namespace rcuda::client
