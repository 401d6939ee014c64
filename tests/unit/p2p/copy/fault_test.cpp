// After any fault both halves end with an error, the streams continue, and memory is freed.
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/two_workers.h"

namespace rcuda::p2p {
namespace {

using ::testing::HasSubstr;

TEST(FaultTest, AFailedCopyEndsBothHalvesAndNothingElse) {
  for (const char* medium : {"shm", "tcp"}) {
    for (const Lane lane : {Lane::kOut, Lane::kIn}) {
      for (const int nth : {1, 5, 40}) {
        TwoWorkers pair(medium, "v4b:256Kx8");
        (lane == Lane::kOut ? pair.a() : pair.b()).fail_copy(lane, nth);
        const auto result = pair.start(1, 16 * kMiB);
        pair.session.settle();
        ASSERT_TRUE(result->over()) << medium << " " << nth;
        EXPECT_EQ(result->source.code(), Code::kCuda);
        EXPECT_EQ(result->destination.code(), Code::kCuda);
        EXPECT_EQ(result->source.cuda(), 719);
        EXPECT_EQ(result->destination.cuda(), 719);
        EXPECT_EQ(pair.a().stream_errors(pair.streams[0]).size(), 1u);
        EXPECT_EQ(pair.b().stream_errors(pair.streams[1]).size(), 1u);
        pair.expect_streams_free();
        // All slots are free again: the next copies have the whole window.
        for (uint64_t id = 2; id < 6; ++id) pair.expect_works(id);
      }
    }
  }
}

// Boxes that the driver accepted before it refused one are still in progress.
TEST(FaultTest, ACopyThatIsRefusedHalfwayIsNotOverBeforeWhatWasIssued) {
  for (const char* medium : {"shm", "tcp"}) {
    for (const Lane lane : {Lane::kOut, Lane::kIn}) {
      for (const int nth : {1, 3, 12}) {
        TwoWorkers pair(medium, "v4b:256Kx8");
        SimDevices& devices = lane == Lane::kOut ? pair.a() : pair.b();
        devices.set_speeds({{500, 10, 0}, {500, 10, 0}, {500, 10, 0}});
        devices.refuse_copy(lane, nth);
        const auto result = pair.start(1, 4 * kMiB);
        pair.session.run([&] { return result->over(); });
        ASSERT_TRUE(result->over()) << medium << " " << nth;
        EXPECT_EQ(result->source.cuda(), 1);
        EXPECT_EQ(result->destination.cuda(), 1);
        // The program may free the memory of the copy now.
        pair.a().free_memory(pair.source);
        pair.b().free_memory(pair.destination);
        pair.session.settle();
        pair.expect_streams_free();
        for (uint64_t id = 2; id < 6; ++id) pair.expect_works(id);
      }
    }
  }
}

// A socket accepts a chunk's bytes long before they arrive at the peer. Until they have arrived,
// the chunk's slot in the inbox must not be given to the next copy.
TEST(FaultTest, LateBytesOfAFailedCopyDoNotLandOnTheNext) {
  EngineOptions options = quiet_options();
  options.inbox_bytes = EngineOptions::kLeastInboxBytes;
  SimWire wire;
  wire.uneven_us = 5000;
  for (const Lane lane : {Lane::kOut, Lane::kIn}) {
    for (const int nth : {1, 2, 3, 4}) {
      TwoWorkers pair("tcp", "v4b:256Kx4", false, wire, options);
      (lane == Lane::kOut ? pair.a() : pair.b()).fail_copy(lane, nth);
      const auto failed = pair.start(1, 4 * kMiB);
      pair.session.run([&] { return failed->over(); });
      ASSERT_TRUE(failed->over());
      for (uint64_t id = 2; id < 6; ++id) pair.expect_works(id);
      pair.expect_streams_free();
    }
  }
}

TEST(FaultTest, ACutLinkEndsCopiesAtAnyMoment) {
  for (const char* medium : {"shm", "tcp"}) {
    for (double cut_us = 0.5; cut_us < 3000; cut_us *= 1.7) {
      TwoWorkers pair(medium, "v4b:256Kx8");
      const auto result = pair.start(1, 16 * kMiB);
      pair.session.world.after_us(cut_us, pair.cable.cut);
      pair.session.settle();
      ASSERT_TRUE(result->over()) << medium << " cut after " << cut_us;
      pair.expect_streams_free();
      EXPECT_FALSE(result->source.ok() && !result->destination.ok() && cut_us < 1000);
      // Later copies fail at once, on both sides.
      const auto later = pair.start(2, kMiB);
      pair.session.settle();
      ASSERT_TRUE(later->over());
      EXPECT_EQ(later->source.code(), Code::kUnavailable);
      EXPECT_EQ(later->destination.code(), Code::kUnavailable);
      pair.expect_streams_free();
      // Staging memory is freed although the engines still exist.
      EXPECT_EQ(pair.a().registered(), 0u);
      EXPECT_EQ(pair.b().registered(), 0u);
    }
  }
}

// Probes and measurements use staging memory as well. It stays until their transfers have ended.
TEST(FaultTest, ACutLinkInTheMiddleOfMeasurements) {
  for (const char* medium : {"shm", "tcp", "verbs"}) {
    for (double cut_us = 3; cut_us < 20'000; cut_us *= 1.6) {
      SimSession session;
      for (int i = 0; i < 2; ++i) {
        SimDevices& devices = session.add();
        devices.allow_gpudirect(true);
        devices.allow_ipc(true);
      }
      SimLinkPair cable = session.connect(0, 1, medium);
      session.world.after_us(cut_us, cable.cut);
      session.settle();
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_FALSE(session.core(i).peer(static_cast<PeerId>(1 - i)).lost().ok());
        EXPECT_EQ(session.workers[i].devices->registered(), 0u);
      }
    }
  }
}

// If the program is never idle, the Link of a lost peer stays.
TEST(FaultTest, MessagesToAndFromALostPeerAreNoWork) {
  TwoWorkers pair("tcp");
  Core& receiver = pair.session.core(1);
  pair.b().allow_pauses(Pause::kHolds);
  for (uint64_t id = 1; id <= 2; ++id) pair.start(id, kMiB);
  receiver.run_round();
  EXPECT_TRUE(receiver.polling());  // to send Ready with the next round
  pair.session.core(0).peer(1).signal(9, {}, StreamPlace::kNone,
                                      {Code::kInvalidArgument, "no stream"});
  ASSERT_TRUE(pair.session.world.run({&pair.session.core(0)}, [&] { return receiver.pending(); }));
  receiver.peer(0).lose({Code::kUnavailable, "enough"});
  pair.session.world.settle({&receiver});
  EXPECT_NE(receiver.peer(0).link(), nullptr);
  EXPECT_FALSE(receiver.polling());
  EXPECT_FALSE(receiver.pending());
  pair.b().allow_pauses(Pause::kWork);
  pair.session.settle();
  pair.expect_streams_free();
}

TEST(FaultTest, OtherPeersGoOnWhenOneIsLost) {
  SimSession session("v4b:256Kx8", quiet_options());
  for (int i = 0; i < 3; ++i) session.add();
  SimLinkPair bad = session.connect(0, 1, "tcp");
  session.connect(0, 2, "tcp");
  session.settle();
  std::vector<std::shared_ptr<CopyResult>> results;
  for (size_t to = 1; to < 3; ++to) {
    CopyRequest request;
    request.to = to;
    request.source =
        Shape::plain(address_of(session.workers[0].devices->make_memory(16 * kMiB)), 16 * kMiB);
    request.destination =
        Shape::plain(address_of(session.workers[to].devices->make_memory(16 * kMiB)), 16 * kMiB);
    results.push_back(start_copy(session, request));
  }
  session.world.after_us(700, bad.cut);
  session.settle();
  EXPECT_EQ(results[0]->source.code(), Code::kUnavailable);
  EXPECT_EQ(results[0]->destination.code(), Code::kUnavailable);
  EXPECT_TRUE(results[1]->over() && results[1]->source.ok() && results[1]->destination.ok());
}

TEST(FaultTest, APeerThatCannotBeConnectedEndsWaitingCopies) {
  SimSession session("auto", quiet_options());
  SimDevices& a = session.add();
  session.add();
  const uint64_t stream = a.make_stream();
  CopyRequest request;
  request.source = Shape::plain(address_of(a.make_memory(64)), 64);
  request.source_stream = stream;
  Status ended;
  PeerCopy half = sending_half(request);
  half.stream = StreamRef{stream, 0};
  half.done = [&](const Status& status) { ended = status; };
  session.core(0).copy(half, place_in(a, stream), {});
  session.settle();
  EXPECT_TRUE(ended.ok());
  session.core(0).peer(1).lose({Code::kUnavailable, "node2 refused the connection"});
  session.settle();
  EXPECT_EQ(ended.code(), Code::kUnavailable);
  EXPECT_THAT(ended.context(), HasSubstr("refused"));
  EXPECT_TRUE(a.stream_idle(stream));
}

TEST(FaultTest, RefusedRegistrationOfTheInboxIsTheConnectionsError) {
  for (const size_t refuser : {0u, 1u}) {
    SimSession session("auto", quiet_options());
    session.add();
    session.add();
    session.workers[refuser].devices->fail_registration(true);
    session.connect(0, 1, "tcp");
    session.settle();
    EXPECT_FALSE(session.core(0).peer(1).open());
    EXPECT_FALSE(session.core(1).peer(0).open());
    EXPECT_EQ(session.core(refuser).peer(static_cast<PeerId>(1 - refuser)).lost().code(),
              Code::kCuda);
  }
}

TEST(FaultTest, RefusedRegistrationOfV1FallsBackToStaging) {
  for (const bool source_refuses : {true, false}) {
    TwoWorkers pair("verbs", "v1", true);
    pair.cable.refuse_registration(source_refuses);
    pair.expect_works(1);
    pair.expect_works(2);
    pair.expect_streams_free();
  }
}

// The fallback sends chunks that overlap. The planner still predicts that v1 is the fastest
// strategy, and is not notified that v1 is refused.
TEST(FaultTest, WhatStandsInForV1TakesLittleMoreThanStagingDoes) {
  double took_us[2];
  for (const bool refused : {false, true}) {
    TwoWorkers pair("verbs", refused ? "v1" : "v4b", true);
    if (refused) pair.cable.refuse_registration(false);
    const double begin_us = pair.session.world.now_us();
    const auto result = pair.start(1, 16 * kMiB);
    pair.session.settle();
    ASSERT_TRUE(result->over() && result->source.ok());
    took_us[refused] = result->over_us - begin_us;
  }
  EXPECT_LT(took_us[true], 1.1 * took_us[false]);
}

// Returns where a copy is staged if the adapter of the source reaches GPU memory.
Staging staging_with_gpudirect(bool peer_has_it, bool has_inbox) {
  SimSession session("v4a", quiet_options());
  SimDevices& a = session.add();
  SimDevices& b = session.add();
  a.allow_gpudirect(true);
  b.allow_gpudirect(peer_has_it);
  b.fail_allocation(!has_inbox);
  session.connect(0, 1, "verbs");
  session.settle();
  return session.core(0).peer(1).peer_link()->planner(0, 0).plan(kMiB, true)->staging;
}

TEST(FaultTest, GpudirectMustWorkAtBothEnds) {
  EXPECT_EQ(staging_with_gpudirect(true, true), Staging::kDevice);
  EXPECT_EQ(staging_with_gpudirect(false, true), Staging::kHost);
}

TEST(FaultTest, WithoutAnInboxInGpuMemoryThereIsNoGpudirect) {
  EXPECT_EQ(staging_with_gpudirect(true, false), Staging::kHost);
}

TEST(FaultTest, HalvesThatDisagreeFailOnBothSides) {
  for (const bool ipc : {false, true}) {
    TwoWorkers pair("shm", ipc ? "ipc" : "v4b", ipc);
    CopyRequest request;
    request.source = Shape::plain(address_of(pair.a().make_memory(kMiB)), kMiB);
    request.destination = Shape::plain(address_of(pair.b().make_memory(kMiB)), kMiB - 8);
    const auto result = start_copy(pair.session, request);
    pair.session.settle();
    ASSERT_TRUE(result->over());
    EXPECT_EQ(result->source.code(), Code::kInvalidArgument);
    EXPECT_EQ(result->destination.code(), Code::kInvalidArgument);
    pair.expect_works(2);
  }
}

TEST(FaultTest, AHalfThatCannotTakeItsPlaceEndsTheOther) {
  for (const bool source : {true, false}) {
    TwoWorkers pair("tcp");
    CopyRequest request;
    request.source = Shape::plain(address_of(pair.a().make_memory(kMiB)), kMiB);
    request.destination = Shape::plain(address_of(pair.b().make_memory(kMiB)), kMiB);
    request.source_stream = source ? 0 : pair.streams[0];
    request.destination_stream = source ? pair.streams[1] : 0;
    Status other;
    const Status failure = Status::from_cuda(400, "cuEventRecord");
    PeerCopy sending = sending_half(request);
    PeerCopy receiving = receiving_half(request);
    (source ? receiving : sending).done = [&](const Status& status) { other = status; };
    pair.session.core(0).copy(sending, place_in(pair.a(), request.source_stream),
                              source ? failure : Status());
    pair.session.core(1).copy(receiving, place_in(pair.b(), request.destination_stream),
                              source ? Status() : failure);
    pair.session.settle();
    EXPECT_EQ(other.cuda(), 400);
    pair.expect_streams_free();
    pair.expect_works(9);
  }
}

TEST(FaultTest, ACopyMayFailBeforeTheOneBeforeItInItsStreamBegins) {
  TwoWorkers pair("tcp");
  pair.a().run_kernel(pair.streams[0], 10'000, [] {});
  CopyRequest request;
  request.source = Shape::plain(address_of(pair.a().make_memory(kMiB)), kMiB);
  request.destination = Shape::plain(address_of(pair.b().make_memory(kMiB)), kMiB);
  request.source_stream = pair.streams[0];
  const auto first = start_copy(pair.session, request);
  request.id = 2;
  request.follows = true;
  Status second;
  PeerCopy sending = sending_half(request);
  sending.done = [&](const Status& status) { second = status; };
  pair.session.core(0).copy(sending, place_in(pair.a(), pair.streams[0], true), {});
  // The second copy sleeps until the first begins, which waits for the kernel.
  while (pair.session.core(0).run_round()) {
  }
  pair.session.core(1).copy(receiving_half(request), StreamPlace::kNone,
                            {Code::kInvalidArgument, "no memory of the device"});
  ASSERT_TRUE(pair.session.run([&] { return !second.ok(); }));
  EXPECT_EQ(second.code(), Code::kInvalidArgument);
  EXPECT_FALSE(first->over());
  pair.session.settle();
  EXPECT_TRUE(first->over() && first->source.ok() && first->destination.ok());
  pair.expect_streams_free();
  pair.expect_works(3);
}

TEST(FaultTest, TheEnginesEndInTheMiddleOfCopies) {
  for (const char* medium : {"shm", "tcp"}) {
    for (const double stop_us : {10.0, 300.0, 900.0}) {
      TwoWorkers pair(medium, "v4b:256Kx8");
      const auto result = pair.start(1, 16 * kMiB);
      bool stop = false;
      pair.session.world.after_us(stop_us, [&] { stop = true; });
      pair.session.run([&] { return stop; });
      // The simulated devices need the clock to end their copies, so the clock runs here and not in
      // the destructor.
      pair.session.core(0).peer(1).lose({Code::kUnavailable, "the session ends"});
      pair.session.settle();
      EXPECT_TRUE(result->over());
      pair.expect_streams_free();
    }
  }
}

}  // namespace
}  // namespace rcuda::p2p
