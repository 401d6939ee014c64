// Legs are measured as they are, once, and beside the copies of a program.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "common/base/unique_fd.h"
#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

TEST(MeasurementTest, TheProberFindsTheLegsAsTheyAre) {
  SimSession session;
  const SimDevices::Speeds speeds{{6, 10, 2}, {5, 12, 3}, {3, 100, 1}};
  for (int i = 0; i < 2; ++i) session.add().set_speeds(speeds);
  session.connect(0, 1, "tcp", {{3, 8, 4}, 1.5});
  session.settle();
  EXPECT_TRUE(session.core(0).idle());
  const PairModel model = pair_model(session.core(0).environment().measurements,
                                     session.core(0).peer(1).peer_link()->pair_key(0, 0));
  for (const uint64_t bytes : {4 * kKiB, 100 * kKiB, 3 * kMiB, 64 * kMiB}) {
    EXPECT_NEAR(model.copy_out.time_us(bytes) / (8 + us_at(bytes, 10)), 1, 0.03) << bytes;
    // Measured and reported by the peer.
    EXPECT_NEAR(model.copy_in.time_us(bytes) / (8 + us_at(bytes, 12)), 1, 0.03) << bytes;
    // The message after a small chunk arrives with it, but the model counts it separately.
    const double wire_us = 7 + us_at(bytes, 8);
    const double with_message_us = bytes < 256 * kKiB ? 1.5 : 0;
    EXPECT_LT(model.wire_tcp.time_us(bytes), 1.03 * wire_us) << bytes;
    EXPECT_GT(model.wire_tcp.time_us(bytes), 0.97 * (wire_us - with_message_us)) << bytes;
  }
  EXPECT_NEAR(model.copy_out.delay_us(0), 2, 0.1);
  EXPECT_NEAR(model.message_us, 1.5, 0.01);
}

// Legs that are in the file are not measured again. Each is used once before the first copy.
TEST(MeasurementTest, KnownLegsAreWarmedUpAndNoMore) {
  EngineOptions options;
  options.measurements_path = ::testing::TempDir() + "rcuda-known-legs.toml";
  std::remove(options.measurements_path.c_str());
  uint64_t copies[2];
  for (uint64_t& count : copies) {
    SimSession session("auto", options);
    for (int i = 0; i < 2; ++i) session.add().allow_ipc(true);
    session.connect(0, 1, "shm");
    session.settle();
    EXPECT_TRUE(session.core(0).idle());
    count = session.workers[0].devices->copies();
  }
  EXPECT_GT(copies[0], 20u);
  EXPECT_EQ(copies[1], 3u);  // out, in and mapped
  std::remove(options.measurements_path.c_str());
}

// In a program that copies in a loop from the start of the session, the legs are measured anyway,
// and its copies are hardly slower meanwhile.
TEST(MeasurementTest, AProgramThatNeverPausesIsMeasuredInATwentiethOfItsTime) {
  constexpr uint64_t kBytes = 64 * kKiB;
  constexpr int kCopies = 20'000;
  double took_us[2];
  for (const bool measure : {false, true}) {
    EngineOptions options;
    options.measure = measure;
    SimSession session("v2b", options);
    session.world.move_bytes = false;
    for (int i = 0; i < 2; ++i) session.add().set_speeds({{6, 100, 2}, {5, 100, 2}, {3, 100, 1}});
    session.connect(0, 1, "shm");
    CopyRequest request;
    request.source =
        Shape::plain(address_of(session.workers[0].devices->make_memory(kBytes)), kBytes);
    request.destination =
        Shape::plain(address_of(session.workers[1].devices->make_memory(kBytes)), kBytes);
    const double begin_us = session.world.now_us();
    for (int i = 1; i <= kCopies; ++i) {
      request.id = static_cast<uint64_t>(i);
      const auto result = start_copy(session, request);
      ASSERT_TRUE(session.run([&] { return result->over(); }));
      ASSERT_TRUE(result->source.ok());
    }
    took_us[measure] = session.world.now_us() - begin_us;
    if (!measure) continue;
    for (int i = 0; i < 2; ++i) {
      const PairKey pair = session.core(0).peer(1).peer_link()->pair_key(0, 0);
      const PairModel model =
          pair_model(session.core(static_cast<size_t>(i)).environment().measurements, pair);
      EXPECT_TRUE(i == 0 ? model.copy_out.peak_gbps() > 1 : model.copy_in.peak_gbps() > 1);
    }
  }
  EXPECT_LT(took_us[true], 1.1 * took_us[false]);
}

// Three workers. The legs of the first one are the same for both others.
class SharedLegsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::remove(options_.measurements_path.c_str()); }
  void TearDown() override { std::remove(options_.measurements_path.c_str()); }

  SharedLegsTest() { options_.measurements_path = ::testing::TempDir() + "rcuda-shared-legs.toml"; }
  std::unique_ptr<SimSession> connect() const {
    auto session = std::make_unique<SimSession>("v2b", options_);
    session->world.move_bytes = false;
    for (int i = 0; i < 3; ++i) session->add().set_speeds({{6, 10, 2}, {5, 12, 3}, {3, 100, 1}});
    for (size_t i = 1; i < 3; ++i) session->connect(0, i, "shm");
    return session;
  }
  static void expect_copy_out_of_first(const Measurements& measurements) {
    const LegModel* const leg = measurements.find({"copy_out", "GPU-0-0", "", ""});
    ASSERT_NE(leg, nullptr);
    for (const uint64_t bytes : {4 * kKiB, 100 * kKiB, 3 * kMiB}) {
      EXPECT_NEAR(leg->time_us(bytes) / (8 + us_at(bytes, 10)), 1, 0.03) << bytes;
    }
  }

  EngineOptions options_;
};

TEST_F(SharedLegsTest, TwoPeersAreNotMeasuredAtTheSameTime) {
  const auto session = connect();
  session->settle();
  expect_copy_out_of_first(session->core(0).environment().measurements);
  expect_copy_out_of_first(session->core(1).environment().measurements);  // as reported by the peer
}

// Copies with one peer disturb samples that are taken with the other.
TEST_F(SharedLegsTest, WhatCopiesDisturbedIsNotKept) {
  constexpr uint64_t kBytes = 8 * kMiB;
  {
    const auto session = connect();
    CopyRequest request;
    request.to = 2;
    request.source =
        Shape::plain(address_of(session->workers[0].devices->make_memory(kBytes)), kBytes);
    request.destination =
        Shape::plain(address_of(session->workers[2].devices->make_memory(kBytes)), kBytes);
    const LegKey leg{"copy_out", "GPU-0-0", "", ""};
    const Measurements& measured = session->core(0).environment().measurements;
    while (measured.find(leg) == nullptr && request.id < 5'000) {
      const auto result = start_copy(*session, request);
      ASSERT_TRUE(session->run([&] { return result->over(); }));
      ++request.id;
    }
    // A disturbed leg is better than none, for this session.
    ASSERT_NE(measured.find(leg), nullptr);
    session->settle();
    const auto kept = Measurements::load(options_.measurements_path);
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    EXPECT_EQ(kept->find(leg), nullptr);
    EXPECT_NE(kept->find({"copy_in", "GPU-1-0", "", ""}), nullptr);  // not disturbed by any copy
  }
  const auto session = connect();
  session->settle();
  expect_copy_out_of_first(session->core(0).environment().measurements);
  const auto kept = Measurements::load(options_.measurements_path);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  expect_copy_out_of_first(*kept);
}

TEST_F(SharedLegsTest, WhatCannotBeSavedNowIsSavedLater) {
  const std::string& path = options_.measurements_path;
  const UniqueFd holder(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(holder.get(), LOCK_EX), 0);
  const auto session = connect();
  session->settle();
  EXPECT_EQ(Measurements::load(path).status().code(), Code::kNotFound);
  ASSERT_EQ(::flock(holder.get(), LOCK_UN), 0);
  session->world.after_us(2e6, [] {});
  session->settle();
  const auto kept = Measurements::load(path);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  expect_copy_out_of_first(*kept);
}

// The legs to the first peer are measured at once, those to another peer with the first copy to it.
TEST(MeasurementTest, APeerThatNobodyCopiesWithIsNotMeasured) {
  SimSession session;
  session.world.move_bytes = false;
  for (size_t i = 0; i < 3; ++i) session.add();
  session.connect(0, 1, "tcp");
  session.connect(0, 2, "tcp");
  session.settle();
  const auto wire_to = [&](size_t peer) {
    const auto legs = session.core(0).environment().measurements.legs();
    return std::any_of(legs.begin(), legs.end(), [&](const auto& leg) {
      return leg.first.kind == "wire" && leg.first.peer == "node" + std::to_string(peer);
    });
  };
  EXPECT_TRUE(wire_to(1));
  EXPECT_FALSE(wire_to(2));
  EXPECT_TRUE(session.core(0).idle());
  CopyRequest request;
  request.from = 0;
  request.to = 2;
  request.source = Shape::plain(address_of(session.workers[0].devices->make_memory(kMiB)), kMiB);
  request.destination =
      Shape::plain(address_of(session.workers[2].devices->make_memory(kMiB)), kMiB);
  const auto copy = start_copy(session, request);
  session.settle();
  EXPECT_TRUE(copy->over());
  // Samples wait until no copy has come for a while, and simulated time passes only with events.
  for (int i = 0; i < 100 && !wire_to(2); ++i) {
    session.world.after_us(10'000, [] {});
    session.settle();
  }
  EXPECT_TRUE(wire_to(2));
}

}  // namespace
}  // namespace rcuda::p2p
