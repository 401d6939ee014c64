// Measurements of legs: the models are right, each leg is measured once, and measurements also
// happen during the copies of a program.
#include <algorithm>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

TEST(MeasurementTest, TheProberFindsTheLegsAsTheyAre) {
  SimSession session;
  const SimDevices::Speeds speeds{{6, 10, 2}, {5, 12, 3}, {3, 100, 1}};
  for (int i = 0; i < 2; ++i) session.add().set_speeds(speeds);
  session.connect(0, 1, "tcp", {{3, 8, 4}, 1.5});
  session.settle();
  EXPECT_TRUE(session.core(0).peer(1).idle());
  const PairModel model = session.core(0).peer(1).peer_link()->model(0, 0);
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

// The legs are also measured in a program that copies in a loop from the start of the session.
// During the measurements its copies are hardly slower.
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
      const DeviceLegs& legs = session.core(static_cast<size_t>(i)).environment().legs[0];
      EXPECT_TRUE(i == 0 ? legs.copy_out.peak_gbps() > 1 : legs.copy_in.peak_gbps() > 1);
    }
  }
  EXPECT_LT(took_us[true], 1.1 * took_us[false]);
}

// Three workers. The first worker's copy-out and copy-in are the same for both peers, and are
// measured once. Before the first copy with the second peer, each known leg is used once.
TEST(MeasurementTest, TwoPeersAreNotMeasuredAtTheSameTime) {
  SimSession session("v2b");
  session.world.move_bytes = false;
  for (int i = 0; i < 3; ++i) session.add().set_speeds({{6, 10, 2}, {5, 12, 3}, {3, 100, 1}});
  for (size_t i = 1; i < 3; ++i) session.connect(0, i, "shm");
  session.settle();
  const uint64_t copies = session.workers[0].devices->copies();
  EXPECT_GT(copies, 20u);
  const LegModel& leg = session.core(0).environment().legs[0].copy_out;
  for (const uint64_t bytes : {4 * kKiB, 100 * kKiB, 3 * kMiB}) {
    EXPECT_NEAR(leg.time_us(bytes) / (8 + us_at(bytes, 10)), 1, 0.03) << bytes;
  }
  // As the peer reported it.
  EXPECT_EQ(session.core(1).peer(0).peer_link()->model(0, 0).copy_in,
            session.core(0).environment().legs[0].copy_in);
  (void)session.core(0).peer(2).forecast(0, 0, 1);  // asks for the legs to the other peer
  session.settle();
  EXPECT_EQ(session.workers[0].devices->copies(), copies + 2);  // out and in
}

// The legs to the first peer are measured immediately, the legs to another peer with the first copy
// to that peer.
TEST(MeasurementTest, APeerThatNobodyCopiesWithIsNotMeasured) {
  SimSession session;
  session.world.move_bytes = false;
  for (size_t i = 0; i < 3; ++i) session.add();
  session.connect(0, 1, "tcp");
  session.connect(0, 2, "tcp");
  session.settle();
  const auto wire_to = [&](PeerId peer) {
    return !session.core(0).peer(peer).peer_link()->wire.empty();
  };
  EXPECT_TRUE(wire_to(1));
  EXPECT_FALSE(wire_to(2));
  EXPECT_TRUE(session.core(0).peer(1).idle());
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
