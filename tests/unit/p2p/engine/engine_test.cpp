// The engine with its threads, over real Links: behaviour that the simulated tests cannot show.
// These tests also give ThreadSanitizer races to find.
#include "p2p/engine/engine.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_open.h"
#include "tests/support/link_pair.h"
#include "tests/support/p2p_threads.h"
#include "tests/support/thread_limit.h"

namespace rcuda::p2p {
namespace {

using namespace std::chrono_literals;
using rcuda::testing::ThreadedDevices;
using rcuda::testing::wait_until_open;
using test::Medium;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kStream = 1;

SessionToken token() {
  SessionToken token;
  token.fill(std::byte{3});
  return token;
}

class EngineTest : public ::testing::TestWithParam<const Medium*> {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.inbox_bytes = 4 * kMiB;
    for (int i = 0; i < 2; ++i) {
      devices_[i] = std::make_unique<ThreadedDevices>(std::to_string(i));
      auto engine = Engine::create(*devices_[i], options);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      engines_[i] = *std::move(engine);
    }
    transport::LinkOptions link_options;
    link_options.window_bytes = PeerWindow::kBytes;
    auto pair = test::make_link_pair(*GetParam(), link_options, link_options);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    cut_ = pair->cut;
    engines_[0]->attach(1, std::move(pair->client), token(), true);
    engines_[1]->attach(0, std::move(pair->server), token(), false);
  }
  void TearDown() override {
    engines_[0].reset();
    engines_[1].reset();
    for (auto& devices : devices_) {
      EXPECT_EQ(devices->open_orders(), 0u);
      EXPECT_EQ(devices->given_back_elsewhere(), 0u);
    }
  }

  struct Ends {
    std::atomic<int> over = 0;
    std::atomic<int> failed = 0;
  };
  void start(uint64_t id, int from, std::vector<std::byte>& source,
             std::vector<std::byte>& destination, Ends& ends) {
    const auto done = [&ends](const Status& status) {
      if (!status.ok()) ++ends.failed;
      ++ends.over;
    };
    PeerCopy sending;
    sending.id = id;
    sending.peer = static_cast<PeerId>(1 - from);
    sending.outgoing = true;
    sending.memory = Shape::plain(reinterpret_cast<uint64_t>(source.data()), source.size());
    sending.stream = StreamRef{kStream, 0};
    sending.peer_has_stream = true;
    sending.done = done;
    PeerCopy receiving = sending;
    receiving.outgoing = false;
    receiving.peer = static_cast<PeerId>(from);
    receiving.memory =
        Shape::plain(reinterpret_cast<uint64_t>(destination.data()), destination.size());
    EXPECT_TRUE(engines_[from]->copy(std::move(sending)).ok());
    EXPECT_TRUE(engines_[1 - from]->copy(std::move(receiving)).ok());
  }
  // Waits without a limit. CTest's limit ends a hang.
  static void wait_for(Ends& ends, int over) {
    while (ends.over < over) std::this_thread::sleep_for(200us);
  }

  std::unique_ptr<ThreadedDevices> devices_[2];
  std::unique_ptr<Engine> engines_[2];
  std::function<void()> cut_;
};

TEST_P(EngineTest, CopiesInBothDirectionsFromSeveralThreads) {
  ASSERT_TRUE(wait_until_open(*engines_[0], 1, 30s));
  constexpr int kThreads = 3;
  constexpr int kCopies = 12;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kCopies; ++i) {
        const size_t bytes = i % 4 == 0 ? 3 * kMiB + 11 : 1 + random() % 100'000;
        std::vector<std::byte> source(bytes);
        std::vector<std::byte> destination(bytes);
        for (auto& byte : source) byte = static_cast<std::byte>(random());
        Ends ends;
        start(static_cast<uint64_t>(t * 1000 + i), i % 2, source, destination, ends);
        wait_for(ends, 2);
        if (ends.failed != 0 || source != destination) ++wrong;
        // Let the engine threads fall asleep between some of the copies.
        if (i % 3 == 0) std::this_thread::sleep_for(3ms);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  // The legs are measured when no copy is in progress.
  for (auto forecast = engines_[0]->plan(1, 0, 0, 1); !forecast->measured;
       forecast = engines_[0]->plan(1, 0, 0, 1)) {
    ASSERT_TRUE(forecast.ok());
    std::this_thread::sleep_for(1ms);
  }
}

TEST_P(EngineTest, ACopyWaitsForAStreamHeldBackAndSignalsCross) {
  ASSERT_TRUE(wait_until_open(*engines_[0], 1, 30s));
  devices_[1]->hold_back(kStream);
  std::vector<std::byte> source(kMiB, std::byte{9});
  std::vector<std::byte> destination(kMiB, std::byte{0});
  Ends ends;
  start(1, 0, source, destination, ends);
  EXPECT_TRUE(engines_[0]->signal(1, 5, {2, 0}).ok());
  EXPECT_TRUE(engines_[1]->await(0, 5, {2, 0}).ok());
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(ends.over, 0);
  EXPECT_EQ(destination[0], std::byte{0});
  devices_[1]->let_go(kStream);
  wait_for(ends, 2);
  EXPECT_EQ(ends.failed, 0);
  EXPECT_EQ(source, destination);
  while (devices_[1]->open_orders() != 0) std::this_thread::sleep_for(200us);
}

TEST_P(EngineTest, ADeadPeerEndsCopiesOnBothSides) {
  ASSERT_TRUE(wait_until_open(*engines_[0], 1, 30s));
  devices_[1]->hold_back(kStream);
  std::vector<std::byte> source(kMiB);
  std::vector<std::byte> destination(kMiB);
  Ends ends;
  start(1, 0, source, destination, ends);
  cut_();
  wait_for(ends, 2);
  EXPECT_EQ(ends.failed, 2);
  EXPECT_EQ(devices_[0]->errors() + devices_[1]->errors(), 2u);
  // Later copies fail as well, at once.
  Ends later;
  start(2, 1, source, destination, later);
  wait_for(later, 2);
  EXPECT_EQ(later.failed, 2);
}

// If the program is never idle, the Link of a lost peer stays, and so do its unread messages.
TEST_P(EngineTest, TheEngineSleepsAfterALoss) {
  ASSERT_TRUE(wait_until_open(*engines_[0], 1, 30s));
  ASSERT_TRUE(wait_until_open(*engines_[1], 0, 30s));
  devices_[1]->allow_pauses(Pause::kHolds);
  // Keeps the second engine thread from the messages that come after this copy.
  std::atomic<bool> stopped = false;
  std::atomic<bool> go_on = false;
  std::vector<std::byte> source(64);
  std::vector<std::byte> destination(64);
  Ends ends;
  PeerCopy sending;
  sending.id = 1;
  sending.peer = 1;
  sending.outgoing = true;
  sending.memory = Shape::plain(reinterpret_cast<uint64_t>(source.data()), source.size());
  PeerCopy receiving = sending;
  receiving.outgoing = false;
  receiving.peer = 0;
  receiving.memory =
      Shape::plain(reinterpret_cast<uint64_t>(destination.data()), destination.size());
  receiving.done = [&](const Status&) {
    stopped = true;
    while (!go_on) std::this_thread::sleep_for(200us);
    ++ends.over;
  };
  EXPECT_TRUE(engines_[0]->copy(std::move(sending)).ok());
  EXPECT_TRUE(engines_[1]->copy(std::move(receiving)).ok());
  while (!stopped) std::this_thread::sleep_for(200us);
  engines_[1]->lose(0, {Code::kUnavailable, "enough"});
  for (uint64_t id = 1; id <= 2; ++id) EXPECT_TRUE(engines_[0]->signal(1, id, {2, 0}).ok());
  while (devices_[0]->open_orders() != 0) std::this_thread::sleep_for(200us);
  go_on = true;
  wait_for(ends, 1);
  // In each round the engine requests the pause in which it drops the Link. If the thread never
  // sleeps, CTest ends this loop.
  size_t asked = devices_[1]->pauses_asked();
  for (size_t before = asked + 1; asked != before; asked = devices_[1]->pauses_asked()) {
    before = asked;
    std::this_thread::sleep_for(50ms);
  }
  devices_[1]->allow_pauses(Pause::kWork);
}

TEST_P(EngineTest, EngineEndsInMidCopy) {
  std::vector<std::byte> source(8 * kMiB);
  std::vector<std::byte> destination(8 * kMiB);
  Ends ends;
  for (uint64_t id = 1; id <= 4; ++id) start(id, 0, source, destination, ends);
  std::this_thread::sleep_for(1ms);
  engines_[0].reset();
  wait_for(ends, 8);
}

TEST_P(EngineTest, WhatIsWrongAtOnceIsRefusedAndThePeerHearsOfIt) {
  ASSERT_TRUE(wait_until_open(*engines_[0], 1, 30s));
  PeerCopy bad;
  bad.id = 1;
  bad.peer = 1;
  bad.outgoing = true;
  bad.device = 7;
  bad.memory = Shape::plain(4096, 64);
  EXPECT_EQ(engines_[0]->copy(bad).code(), Code::kInvalidArgument);
  std::atomic<bool> failed = false;
  std::vector<std::byte> destination(64);
  PeerCopy good;
  good.id = 1;
  good.peer = 0;
  good.memory = Shape::plain(reinterpret_cast<uint64_t>(destination.data()), 64);
  good.done = [&](const Status& status) { failed = status.code() == Code::kInvalidArgument; };
  EXPECT_TRUE(engines_[1]->copy(good).ok());
  while (!failed) std::this_thread::sleep_for(200us);
  bad.id = UINT64_MAX;
  EXPECT_EQ(engines_[0]->copy(bad).code(), Code::kInvalidArgument);
}

// ---- a host without spare threads ----

TEST(EngineThreads, AnEngineThatCannotStartSaysWhatToDo) {
  ThreadedDevices devices("0");
  const test::ThreadLimit limit(0);
  const auto engine = Engine::create(devices, {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), Code::kOutOfMemory);
  EXPECT_NE(engine.status().context().find("pids.max"), std::string::npos);
}

TEST_P(EngineTest, APeerThatNoThreadCanListenToIsLost) {
  // A second Link, to peers with other numbers, which get no thread.
  transport::LinkOptions link_options;
  link_options.window_bytes = PeerWindow::kBytes;
  auto pair = test::make_link_pair(*GetParam(), link_options, link_options);
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  ASSERT_TRUE(wait_until_open(*engines_[0], 1, 30s));
  std::atomic<int> over = 0;
  std::vector<std::byte> memory(kMiB);
  {
    const test::ThreadLimit limit(0, test::ThreadLimit::Of::kProcess);
    engines_[0]->attach(2, std::move(pair->client), token(), true);
    EXPECT_FALSE(wait_until_open(*engines_[0], 2, 30s));
    EXPECT_GT(limit.refused(), 0);
    PeerCopy copy;
    copy.id = 1;
    copy.peer = 2;
    copy.outgoing = true;
    copy.memory = Shape::plain(reinterpret_cast<uint64_t>(memory.data()), memory.size());
    copy.stream = StreamRef{kStream, 0};
    copy.done = [&](const Status& status) {
      EXPECT_EQ(status.code(), Code::kOutOfMemory) << status.message();
      ++over;
    };
    EXPECT_TRUE(engines_[0]->copy(copy).ok());
    while (over == 0) std::this_thread::sleep_for(200us);
  }
  // The other peer is not affected.
  std::vector<std::byte> source(kMiB, std::byte{5});
  Ends ends;
  start(3, 0, source, memory, ends);
  wait_for(ends, 2);
  EXPECT_EQ(ends.failed, 0);
  EXPECT_EQ(source, memory);
}

INSTANTIATE_TEST_SUITE_P(OverRealLinks, EngineTest,
                         ::testing::Values(&test::medium_named("shm"), &test::medium_named("tcp")),
                         [](const auto& info) { return info.param->name(); });

}  // namespace
}  // namespace rcuda::p2p
