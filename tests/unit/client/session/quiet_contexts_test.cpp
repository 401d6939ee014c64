#include "client/session/quiet_contexts.h"

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

using Scope = QuietContexts::Scope;

constexpr uint16_t kPing = static_cast<uint16_t>(wire::Custom::kPing);
constexpr uint16_t kLaunch = static_cast<uint16_t>(wire::Custom::kLaunch);
constexpr uint16_t kSignal = static_cast<uint16_t>(wire::Custom::kSignal);

// Commands as a session sends them.
class QuietContextsTest : public testing::Test {
 protected:
  void send(uint16_t opcode, std::span<const std::byte> body = {}) {
    contexts_.sent(++commands_, opcode, body);
  }
  // Waited for with nothing sent in between.
  void synchronize(Scope scope, wire::ObjectId context) {
    const uint64_t before = commands_;
    send(kSignal);
    contexts_.waited(scope, context, before, commands_);
  }
  bool quiet(Scope scope, wire::ObjectId context) { return contexts_.is_quiet(scope, context); }

  QuietContexts contexts_;
  uint64_t commands_ = 0;
};

TEST_F(QuietContextsTest, AContextIsQuietUntilSomethingIsQueuedAnywhere) {
  send(kLaunch);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  synchronize(Scope::kContext, 1);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_TRUE(quiet(Scope::kDefaultStream, 1));
  EXPECT_FALSE(quiet(Scope::kContext, 2));
  send(kPing);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  send(kLaunch);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  EXPECT_FALSE(quiet(Scope::kDefaultStream, 1));
}

TEST_F(QuietContextsTest, WhatAsksOrStaysOutsideStreamsQueuesNothing) {
  synchronize(Scope::kContext, 1);
  send(static_cast<uint16_t>(wire::Custom::kWatchEvent));
  wire::PeerCopyBody copy{};
  const auto bytes = std::as_bytes(std::span(&copy, 1));
  send(static_cast<uint16_t>(wire::Custom::kPeerCopy), bytes);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  copy.flags = wire::kPeerHolds;
  send(static_cast<uint16_t>(wire::Custom::kPeerCopy), bytes);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
}

TEST_F(QuietContextsTest, ADefaultStreamSaysNothingOfItsContext) {
  synchronize(Scope::kDefaultStream, 1);
  EXPECT_TRUE(quiet(Scope::kDefaultStream, 1));
  EXPECT_FALSE(quiet(Scope::kContext, 1));
}

TEST_F(QuietContextsTest, WhatAnotherThreadSentMeanwhileCounts) {
  const uint64_t before = commands_;
  send(kSignal);
  send(kLaunch);
  contexts_.waited(Scope::kContext, 1, before, commands_);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
}

// One thread asked before a launch, another one behind it was told that its stream is done.
TEST_F(QuietContextsTest, AnAnswerSaysNothingOfWhatWasSentBehindItsQuestion) {
  const uint64_t before = commands_;
  send(kSignal);
  send(kLaunch);
  synchronize(Scope::kDefaultStream, 1);
  contexts_.waited(Scope::kContext, 1, before, commands_);
  EXPECT_FALSE(quiet(Scope::kContext, 1));
  EXPECT_TRUE(quiet(Scope::kDefaultStream, 1));
}

TEST_F(QuietContextsTest, ThreadsThatAskAtOnceAreBothRight) {
  const auto ask = [this] { send(static_cast<uint16_t>(wire::Custom::kSynchronizeContext)); };
  send(kLaunch);
  const uint64_t first = commands_;
  ask();
  const uint64_t second = commands_;
  ask();
  contexts_.waited(Scope::kContext, 2, second, commands_);
  contexts_.waited(Scope::kContext, 1, first, commands_);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_TRUE(quiet(Scope::kContext, 2));
}

TEST_F(QuietContextsTest, OthersStayQuietWhileNothingIsQueued) {
  synchronize(Scope::kContext, 1);
  const uint64_t before = commands_;
  send(static_cast<uint16_t>(wire::Custom::kSynchronizeContext));
  contexts_.waited(Scope::kContext, 2, before, commands_);
  EXPECT_TRUE(quiet(Scope::kContext, 1));
  EXPECT_TRUE(quiet(Scope::kContext, 2));
}

}  // namespace
}  // namespace rcuda::client
