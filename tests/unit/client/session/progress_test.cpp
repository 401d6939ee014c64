// Progress of events and streams that is told by completion words, of which there are only so many.
#include "client/session/progress.h"

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

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

// A worker that reads no commands stops those that have some for it, and nobody else.
TEST(PaceTest, AStalledServerStopsNoLaunchesOnAnother) {
  LoneSession stalled, other;
  std::promise<void> go_on;
  stalled.puppet.on(wire::Custom::kCopyInline, [going = go_on.get_future().share()](const auto&) {
    going.wait();
    return test::PuppetServer::Answer{};
  });
  std::atomic<uint64_t> posted{0};
  std::atomic<bool> over{false};
  std::thread filling([&] {
    while (!over) {
      (void)stalled.session->post_only(0, static_cast<uint16_t>(wire::Custom::kCopyInline), {});
      ++posted;
    }
  });
  for (uint64_t before = ~0ull; before != posted;) {  // until the ring is full
    before = posted;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const auto launch_on = [](LoneSession& lone) {
    auto* context = create<Context>({1, 1, lone.session.get()});
    auto* stream = create<Stream>({1, 1, lone.session.get()});
    lone.session->remember(context);
    for (int i = 0; i < 300; ++i) pace(*lone.session, *stream, 1);  // a mark or more
    destroy(stream);
    lone.session->forget(wire::Kind::kContext, 1);
    destroy(context);
  };
  std::atomic<bool> got_there{false};
  std::thread waiting([&] {
    got_there = true;
    launch_on(stalled);
  });
  while (!got_there) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto launched = std::async(std::launch::async, [&] { launch_on(other); });
  EXPECT_EQ(launched.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  over = true;
  go_on.set_value();
  filling.join();
  waiting.join();
}

}  // namespace
}  // namespace rcuda::client
