// Contexts without work in flight.
#include "client/session/timelines.h"

#include <thread>

#include <gtest/gtest.h>

#include "client/objects/named.h"
#include "client/session/wait.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using Scope = Timelines::Scope;
using wire::Custom;

class TimelinesTest : public ::testing::Test {
 protected:
  TimelinesTest()
      : context_(create<Context>({1, 1, &session()})),
        other_(create<Context>({2, 2, &session()})),
        stream_(create<Stream>({5, 1, &session()})) {
    remember_named(context_);
    remember_named(other_);
    wait(Scope::kContext, 1);
    wait(Scope::kContext, 2);
  }
  ~TimelinesTest() override {
    if (stream_) destroy(stream_);
    for (Context* context : {context_, other_}) {
      forget_named(*context);
      destroy(context);
    }
  }

  Session& session() { return *lone_.session; }
  Timelines& timelines() { return session().timelines(); }
  void send(Custom opcode, Timeline* timeline, std::span<const std::byte> body = {}) {
    const Route route{&session(), 1, 0, timeline};
    EXPECT_EQ(session().post(route, {opcode, body}), CUDA_SUCCESS);
  }
  void wait(Scope scope, wire::ObjectId context) {
    EXPECT_EQ(scope == Scope::kContext
                  ? synchronize_context(session(), context)
                  : synchronize(in_default_stream(session().in_context(context))),
              CUDA_SUCCESS);
  }
  bool quiet(Scope scope, wire::ObjectId context) { return timelines().is_quiet(scope, context); }

  LoneSession lone_;
  Context* const context_;
  Context* const other_;
  Stream* stream_;
};

TEST_F(TimelinesTest, AContextIsQuietUntilSomethingIsQueuedInOneOfItsStreams) {
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  send(Custom::kLaunch, stream_->timeline.get());
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  EXPECT_FALSE(quiet(Scope::kDefaultStream, 1));
  EXPECT_TRUE(quiet(Scope::kContext, 2));
  wait(Scope::kContext, 1);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_TRUE(quiet(Scope::kDefaultStream, 1));
}

TEST_F(TimelinesTest, AWaitForAQuietContextSendsNothing) {
  (void)lone_.puppet.taken(Custom::kSynchronizeContext);
  wait(Scope::kContext, 1);
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  EXPECT_TRUE(lone_.puppet.taken(Custom::kSynchronizeContext).empty());
}

TEST_F(TimelinesTest, WorkThatIsOnlyKnownToBeDoneIsWaitedForBecauseOfItsOutput) {
  send(Custom::kLaunch, stream_->timeline.get());
  stream_->timeline->advance(stream_->timeline->sent());  // as after a successful query
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_FALSE(timelines().is_awaited(Scope::kContext, 1));
  (void)lone_.puppet.taken(Custom::kSynchronizeContext);
  wait(Scope::kContext, 1);
  EXPECT_FALSE(lone_.puppet.taken(Custom::kSynchronizeContext).empty());
  EXPECT_TRUE(timelines().is_awaited(Scope::kContext, 1));
  EXPECT_TRUE(stream_->timeline->is_awaited());
}

TEST_F(TimelinesTest, ACommandThatTellsOfEarlierWorkIsNoWaitForIt) {
  send(Custom::kLaunch, nullptr);
  timelines().done(timelines().now(Scope::kContext, 1));
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_FALSE(timelines().is_awaited(Scope::kContext, 1));
  timelines().waited(timelines().now(Scope::kContext, 1));
  EXPECT_TRUE(timelines().is_awaited(Scope::kContext, 1));
  EXPECT_TRUE(timelines().is_awaited(Scope::kDefaultStream, 1));
}

TEST_F(TimelinesTest, WhatHasNoKnownStreamMayBeInAnyContext) {
  send(Custom::kLaunch, nullptr);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  EXPECT_FALSE(quiet(Scope::kContext, 2));
  wait(Scope::kContext, 1);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_FALSE(quiet(Scope::kContext, 2));
}

TEST_F(TimelinesTest, WhatAsksOrStaysOutsideStreamsQueuesNothing) {
  send(Custom::kPing, nullptr);
  send(Custom::kWatchEvent, nullptr);
  for (const Custom asks : {Custom::kMirrorFetch, Custom::kMirrorFetchBehind, Custom::kMirrorNews,
                            Custom::kMirrorChanges})
    send(asks, nullptr);
  wire::PeerCopyBody copy{};
  const auto bytes = std::as_bytes(std::span(&copy, 1));
  send(Custom::kPeerCopy, nullptr, bytes);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  copy.flags = wire::kPeerHolds;
  send(Custom::kPeerCopy, nullptr, bytes);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
}

TEST_F(TimelinesTest, ADefaultStreamCoversTheStreamsThatItWaitsFor) {
  using WithLegacy = Timeline::WithLegacy;
  for (const auto relation : {WithLegacy::kMaybe, WithLegacy::kYes, WithLegacy::kNo}) {
    stream_->timeline->set_with_legacy(relation);
    wait(Scope::kContext, 1);
    send(Custom::kLaunch, stream_->timeline.get());
    send(Custom::kLaunch, context_->timeline.get());
    wait(Scope::kDefaultStream, 1);
    EXPECT_EQ(quiet(Scope::kDefaultStream, 1), relation != WithLegacy::kMaybe);
    EXPECT_EQ(quiet(Scope::kContext, 1), relation == WithLegacy::kYes);
  }
}

TEST_F(TimelinesTest, ADefaultStreamSaysNothingOfCommandsWithoutAStream) {
  send(Custom::kLaunch, nullptr);
  wait(Scope::kDefaultStream, 1);
  EXPECT_TRUE(quiet(Scope::kDefaultStream, 1));
  EXPECT_FALSE(quiet(Scope::kContext, 1));
}

TEST_F(TimelinesTest, AnAnswerSaysNothingOfWhatWasSentBehindItsQuestion) {
  const Timelines::Positions positions = timelines().now(Scope::kContext, 1);
  send(Custom::kLaunch, stream_->timeline.get());
  timelines().done(positions);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  const Timelines::Positions later = timelines().now(Scope::kContext, 1);
  send(Custom::kLaunch, nullptr);
  timelines().done(later);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
}

TEST_F(TimelinesTest, ADestroyedStreamsWorkGoesOn) {
  send(Custom::kLaunch, stream_->timeline.get());
  destroy(stream_);
  stream_ = nullptr;
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  wait(Scope::kContext, 1);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
}

TEST_F(TimelinesTest, TheOutputOfADestroyedStreamIsStillToCome) {
  send(Custom::kLaunch, stream_->timeline.get());
  stream_->timeline->advance(stream_->timeline->sent());  // as after a successful query
  destroy(stream_);
  stream_ = nullptr;
  EXPECT_FALSE(timelines().is_awaited(Scope::kContext, 1));
  wait(Scope::kContext, 1);
  EXPECT_TRUE(timelines().is_awaited(Scope::kContext, 1));
}

TEST(WaitsTest, AWaitInAnotherSessionHidesNoWaitOfAnotherThread) {
  Timelines one, another;
  one.add_wait();
  const uint64_t before = one.waits_of_others();
  one.add_wait();
  EXPECT_EQ(one.waits_of_others(), before);
  std::thread([&] { one.add_wait(); }).join();
  another.add_wait();
  EXPECT_NE(one.waits_of_others(), before);
}

}  // namespace
}  // namespace rcuda::client
