// Progress of a stream: positions, marks, pacing, and work that may still write to host memory.
#include "client/session/timeline.h"

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "client/objects/named.h"
#include "client/route/find_route.h"
#include "client/session/capture_answers.h"
#include "client/session/news.h"
#include "client/session/wait.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using wire::Custom;

class TimelineTest : public ::testing::Test {
 protected:
  TimelineTest()
      : context_(create<Context>({1, 1, &session()})), stream_(create<Stream>({5, 1, &session()})) {
    remember_named(context_);
  }
  ~TimelineTest() override {
    destroy(stream_);
    forget_named(*context_);
    destroy(context_);
  }

  Session& session() { return *lone_.session; }
  Timeline& timeline() { return *stream_->timeline; }
  Route route() {
    return {stream_->session, stream_->context, stream_->device, stream_->timeline.get()};
  }
  void launch(int times = 1) {
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(session().post(route(), {Custom::kLaunch, {}}), CUDA_SUCCESS);
    }
  }
  // Queries the stream as cuStreamQuery does. If the client must query the worker, its answer is
  // `worker`, and `*asked` is incremented.
  CUresult query(CUresult worker, int* asked = nullptr) {
    CUresult result = CUDA_SUCCESS;
    const uint64_t position = timeline().sent();
    switch (timeline().progress(position, &result)) {
      case Progress::kDone:
        return result;
      case Progress::kPending:
        return CUDA_ERROR_NOT_READY;
      case Progress::kUnknown:
        break;
    }
    if (asked) ++*asked;
    if (worker == CUDA_SUCCESS) timeline().advance(position);
    if (worker == CUDA_ERROR_NOT_READY) timeline().found_busy(News::count());
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);  // the worker has received the mark
    return worker;
  }
  void hold_signals() {
    lone_.puppet.on(Custom::kSignal, [](const auto&) { return std::nullopt; });
  }

  LoneSession lone_;
  Context* const context_;
  Stream* const stream_;
};

TEST_F(TimelineTest, ItIsLevelUntilSomethingIsSentAndAgainWhenItWasWaitedFor) {
  EXPECT_TRUE(timeline().is_level());
  launch(3);
  EXPECT_EQ(timeline().sent(), 3u);
  EXPECT_FALSE(timeline().is_level());
  EXPECT_FALSE(timeline().has_reached(1));
  EXPECT_EQ(synchronize(route()), CUDA_SUCCESS);
  EXPECT_TRUE(timeline().is_level());
  EXPECT_TRUE(timeline().has_reached(3));
}

// The driver's queue then also holds an event, after the copy.
TEST_F(TimelineTest, ACopyThatWritesAWordTakesTwoPlaces) {
  wire::CopyStagedBody body{};
  EXPECT_EQ(session().post(route(), body), CUDA_SUCCESS);
  EXPECT_EQ(timeline().sent(), 1u);
  const Word word = session().words().acquire();
  body.word = word.index;
  body.sequence = word.sequence + 1;
  EXPECT_EQ(session().post(route(), body), CUDA_SUCCESS);
  EXPECT_EQ(timeline().sent(), 3u);
  EXPECT_EQ(session().wait_word({body.word, body.sequence}), CUDA_SUCCESS);
  session().words().release({body.word, body.sequence});
}

TEST_F(TimelineTest, WhatAnotherServersStreamTaughtMakesItAskAgain) {
  hold_signals();
  launch();
  EXPECT_EQ(query(CUDA_ERROR_NOT_READY), CUDA_ERROR_NOT_READY);
  LoneSession other;
  auto* there = create<Stream>({5, 1, other.session.get()});
  there->timeline->advance(there->timeline->count());
  int asked = 0;
  EXPECT_EQ(query(CUDA_SUCCESS, &asked), CUDA_SUCCESS);
  EXPECT_EQ(asked, 1);
  destroy(there);
}

TEST_F(TimelineTest, WhatIsSentDuringAWaitIsNotReached) {
  std::atomic<bool> launched{false};
  lone_.puppet.on(Custom::kSignal, [&](const auto&) -> std::optional<test::PuppetServer::Answer> {
    while (!launched) std::this_thread::yield();
    return test::PuppetServer::Answer{};
  });
  launch();
  std::thread waiting([&] { EXPECT_EQ(synchronize(route()), CUDA_SUCCESS); });
  while (timeline().sent() < 2) std::this_thread::yield();  // until the signal has been posted
  launch();
  launched = true;
  waiting.join();
  lone_.puppet.on(Custom::kSignal, nullptr);  // removes the handler, which uses a local variable
  EXPECT_TRUE(timeline().has_reached(2));
  EXPECT_FALSE(timeline().is_level());
}

TEST_F(TimelineTest, AWaitThatFailedReachesNothing) {
  lone_.puppet.on(Custom::kSignal, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_LAUNCH_FAILED, {}};
  });
  launch();
  EXPECT_EQ(synchronize(route()), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(timeline().has_reached(1));
}

TEST_F(TimelineTest, ABusyStreamIsAskedOnceAndThenPolledByItsMark) {
  hold_signals();
  launch();
  int asked = 0;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(query(CUDA_ERROR_NOT_READY, &asked), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(asked, 1);
  // Of any number of queries, only the first sends a mark.
  EXPECT_EQ(lone_.puppet.taken(Custom::kSignal).size(), 1u);
  // The client has learned something else, which may imply that the stream is done.
  News::add();
  EXPECT_EQ(query(CUDA_SUCCESS, &asked), CUDA_SUCCESS);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(query(CUDA_ERROR_NOT_READY, &asked), CUDA_SUCCESS);
  EXPECT_EQ(asked, 2);
}

TEST_F(TimelineTest, ABusyStreamIsBusyWithLaterWorkToo) {
  hold_signals();
  launch();
  int asked = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(query(CUDA_ERROR_NOT_READY, &asked), CUDA_ERROR_NOT_READY);
    launch();
  }
  EXPECT_EQ(asked, 1);
}

TEST_F(TimelineTest, AMarkThatIsReachedAnswersWithoutARoundTrip) {
  launch();
  EXPECT_EQ(query(CUDA_ERROR_NOT_READY), CUDA_ERROR_NOT_READY);  // the puppet answers the mark
  int asked = 0;
  EXPECT_EQ(query(CUDA_ERROR_UNKNOWN, &asked), CUDA_SUCCESS);
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(timeline().is_level());
  launch();
  EXPECT_EQ(query(CUDA_ERROR_NOT_READY, &asked), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(asked, 1);
}

TEST_F(TimelineTest, AMarkThatFailedTellsTheError) {
  lone_.puppet.on(Custom::kSignal, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_ILLEGAL_ADDRESS, {}};
  });
  launch();
  EXPECT_EQ(query(CUDA_ERROR_NOT_READY), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(query(CUDA_SUCCESS), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(timeline().is_level());
}

TEST_F(TimelineTest, WithoutAWordTheWorkerIsAskedEachTimeAndNobodyWaits) {
  while (session().words().acquire_spare()) {
  }
  launch();
  int asked = 0;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(query(CUDA_ERROR_NOT_READY, &asked), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(asked, 2);
  for (int i = 0; i < 3000; ++i) {  // more than a queue holds
    timeline().pace();
    launch();
  }
  EXPECT_EQ(synchronize(route()), CUDA_SUCCESS);
}

// ---- pacing ------------------------------------------------------------------------------------

TEST_F(TimelineTest, ItWaitsWhenTheQueueIsFullUntilTheOldestMarkIsReached) {
  hold_signals();
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (int i = 0; i < 2000; ++i) {
      timeline().pace();
      launch();
      ++launched;
    }
  });
  while (launched <= 900) std::this_thread::yield();
  for (int before = -1; before != launched;) {  // until it stops
    before = launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_LT(launched.load(), 1020);  // the capacity of a stream's queue on an H200
  lone_.puppet.on(Custom::kSignal, nullptr);
  for (const auto& held : lone_.puppet.taken(Custom::kSignal)) {
    const auto body = held.as<wire::SignalBody>();
    const uint64_t word = wire::CompletionWord::make(body.sequence, CUDA_SUCCESS);
    ASSERT_TRUE(lone_.puppet.link()
                    .put(wire::ClientWindow::kCompletionWords + 8 * body.word,
                         std::as_bytes(std::span(&word, 1)), {}, transport::Wake::kYes)
                    .ok());
  }
  launching.join();
  EXPECT_EQ(launched.load(), 2000);
}

TEST_F(TimelineTest, CommandsOfACaptureTakeNoRoom) {
  hold_signals();
  set_captures(1);
  for (int i = 0; i < 5000; ++i) {
    timeline().pace();
    launch();
  }
  timeline().pace();
  set_captures(0);
  timeline().pace();  // does not wait
  launch();
  EXPECT_TRUE(lone_.puppet.taken(Custom::kSignal).empty());
}

// A worker that reads no commands blocks only the threads that send it commands.
TEST(PaceTest, AStalledServerStopsNoLaunchesOnAnother) {
  LoneSession stalled, other;
  std::promise<void> go_on;
  stalled.puppet.on(Custom::kCopyInline, [going = go_on.get_future().share()](const auto&) {
    going.wait();
    return test::PuppetServer::Answer{};
  });
  std::atomic<uint64_t> posted{0};
  std::atomic<bool> over{false};
  std::thread filling([&] {
    while (!over) {
      (void)stalled.session->post(stalled.session->in_context(0), {Custom::kCopyInline, {}});
      ++posted;
    }
  });
  for (uint64_t before = ~0ull; before != posted;) {  // until the ring is full
    before = posted;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const auto launch_on = [](LoneSession& lone) {
    auto* stream = create<Stream>({1, 1, lone.session.get()});
    for (int i = 0; i < 300; ++i) {  // at least one mark
      stream->timeline->pace();
      stream->timeline->count();
    }
    destroy(stream);
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

// ---- host writes -------------------------------------------------------------------------------

class HostWritesTest : public TimelineTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(synchronize_context(session(), 1), CUDA_SUCCESS);
    EXPECT_FALSE(Timeline::host_writes_pending());
  }
  void write_to_host(Timeline& timeline) {
    const HostWrite writing(&timeline);
    timeline.count();
    EXPECT_TRUE(Timeline::host_writes_pending());
  }
};

TEST_F(HostWritesTest, ArePendingUntilTheirPositionIsReached) {
  EXPECT_FALSE(Timeline::host_writes_pending());
  launch();
  write_to_host(timeline());
  timeline().advance(1);
  EXPECT_TRUE(Timeline::host_writes_pending());
  launch();
  timeline().advance(2);
  EXPECT_FALSE(Timeline::host_writes_pending());
}

TEST_F(HostWritesTest, AreNotOverWhenAnEarlierPositionIsReachedWhileTheyAreSent) {
  launch();
  const HostWrite writing(&timeline());
  timeline().advance(1);
  EXPECT_TRUE(Timeline::host_writes_pending());
}

TEST_F(HostWritesTest, OfADestroyedStreamArePendingUntilItsContextWasWaitedFor) {
  auto* other = create<Stream>({6, 1, &session()});
  write_to_host(*other->timeline);
  destroy(other);
  EXPECT_TRUE(Timeline::host_writes_pending());
}

TEST_F(HostWritesTest, OfADestroyedStreamAreOverWhenItsLastMarkIsReached) {
  auto* other = create<Stream>({6, 1, &session()});
  write_to_host(*other->timeline);
  other->timeline->mark_end();
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  destroy(other);
  EXPECT_FALSE(Timeline::host_writes_pending());
}

TEST_F(HostWritesTest, ConcernOnlyTheMemoryThatTheyName) {
  {
    const HostWrite writing(&timeline(), {0x2000, 0x3000});
    EXPECT_TRUE(Timeline::may_write({0x2fff, 0x4000}));
    EXPECT_FALSE(Timeline::may_write({0x3000, 0x4000}));
    timeline().count();
  }
  EXPECT_TRUE(Timeline::may_write({0x1000, 0x2001}));
  EXPECT_FALSE(Timeline::may_write({0x1000, 0x2000}));
  write_to_host(timeline());  // a host function: any memory
  EXPECT_TRUE(Timeline::may_write({0x1000, 0x2000}));
}

TEST_F(HostWritesTest, AreTrackedTogetherIfThereAreMany) {
  for (uint64_t i = 1; i <= 40; ++i) {
    const HostWrite writing(&timeline(), {i << 12, (i << 12) + 0x800});
    timeline().count();
  }
  for (uint64_t i = 1; i <= 40; ++i) EXPECT_TRUE(Timeline::may_write({i << 12, (i << 12) + 1}));
  EXPECT_FALSE(Timeline::may_write({0x1800, 0x2000}));
  timeline().advance(39);
  EXPECT_FALSE(Timeline::may_write({0x1000, 0x1800}));
  EXPECT_TRUE(Timeline::may_write({40 << 12, (40 << 12) + 1}));
}

// Two copies write to the same memory; the second ends later.
TEST_F(HostWritesTest, LastUntilTheLastWriteToTheirMemory) {
  for (int i = 0; i < 2; ++i) {
    const HostWrite writing(&timeline(), {0x2000, 0x3000});
    timeline().count();
  }
  timeline().advance(1);
  EXPECT_TRUE(Timeline::may_write({0x2000, 0x3000}));
  timeline().advance(2);
  EXPECT_FALSE(Timeline::may_write({0x2000, 0x3000}));
}

}  // namespace
}  // namespace rcuda::client
