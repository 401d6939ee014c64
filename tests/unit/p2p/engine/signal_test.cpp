// Signals between the streams of two workers: their order, and their errors.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/two_workers.h"

namespace rcuda::p2p {
namespace {

TEST(EventTest, SignalsCrossInOrderWithStreams) {
  TwoWorkers pair("tcp");
  double kernel_us = 0;
  double after_us = 0;
  pair.a().run_kernel(pair.streams[0], 500, [&] { kernel_us = pair.session.world.now_us(); });
  pair.session.core(0).peer(1).signal(77, {pair.streams[0], 0},
                                      *pair.a().enter({pair.streams[0], 0}, false), {});
  pair.session.core(1).peer(0).await(77, {pair.streams[1], 0}, place_in(pair.b(), pair.streams[1]));
  pair.b().run_kernel(pair.streams[1], 1, [&] { after_us = pair.session.world.now_us(); });
  pair.session.settle();
  EXPECT_GT(kernel_us, 0);
  EXPECT_GT(after_us, kernel_us);
  // The signal comes first, the wait later.
  pair.session.core(1).peer(0).signal(5, {pair.streams[1], 0},
                                      *pair.b().enter({pair.streams[1], 0}, false), {});
  pair.session.settle();
  pair.session.core(0).peer(1).await(5, {pair.streams[0], 0}, place_in(pair.a(), pair.streams[0]));
  pair.session.settle();
  pair.expect_streams_free();
}

// The waiting stream gets the error, whether the signal or the wait comes first. The error is the
// driver's refusal of the event's place, or the failure of the stream before this place.
TEST(EventTest, ASignalOfAFailedStreamFailsTheOtherOne) {
  for (const bool signal_first : {false, true}) {
    for (const bool refused : {false, true}) {
      TwoWorkers pair("tcp");
      const StreamRef stream{pair.streams[0], 0};
      const auto signal = [&] {
        const Status failure = refused ? Status::from_cuda(400, "cuEventRecord") : Status();
        pair.a().fail_stream(pair.streams[0], 700);
        pair.session.core(0).peer(1).signal(
            9, stream, refused ? StreamPlace::kNone : *pair.a().enter(stream, false), failure);
        pair.session.settle();
      };
      if (signal_first) signal();
      pair.session.core(1).peer(0).await(9, {pair.streams[1], 0},
                                         place_in(pair.b(), pair.streams[1]));
      pair.session.settle();
      if (!signal_first) signal();
      pair.expect_streams_free();
      const std::vector<Status>& errors = pair.b().stream_errors(pair.streams[1]);
      ASSERT_EQ(errors.size(), 1u) << signal_first;
      EXPECT_EQ(errors[0].cuda(), refused ? 400 : 700) << signal_first;
    }
  }
}

// The copy fails after the signal was queued. A stream of a third worker waits for both.
TEST(EventTest, ASignalTakesTheErrorOfACopyInFrontOfIt) {
  for (const bool failed : {false, true}) {
    TwoWorkers pair("tcp");
    const auto outcome = std::make_shared<Status>();
    pair.a().run_kernel(pair.streams[0], 500, [&] {
      if (failed) *outcome = Status::from_cuda(400, "a copy");
    });
    pair.session.core(0).peer(1).signal(9, {pair.streams[0], 0},
                                        *pair.a().enter({pair.streams[0], 0}, false), {}, outcome);
    pair.session.core(1).peer(0).await(9, {pair.streams[1], 0},
                                       place_in(pair.b(), pair.streams[1]));
    pair.session.settle();
    pair.expect_streams_free();
    const std::vector<Status>& errors = pair.b().stream_errors(pair.streams[1]);
    ASSERT_EQ(errors.size(), failed ? 1u : 0u);
    if (failed) {
      EXPECT_EQ(errors[0].cuda(), 400);
    }
  }
}

// The driver has refused the waiting stream's place, so no stream waits for the signal. The signal
// is dropped: if it were kept, a second signal with the same id would violate the protocol.
TEST(EventTest, ASignalForAWaitThatWasRefusedIsTaken) {
  for (const bool signal_first : {false, true}) {
    TwoWorkers pair("tcp");
    const auto signal = [&] {
      pair.session.core(0).peer(1).signal(9, {pair.streams[0], 0},
                                          *pair.a().enter({pair.streams[0], 0}, false), {});
      pair.session.settle();
    };
    for (int round = 0; round < 2; ++round) {
      if (signal_first) signal();
      pair.session.core(1).peer(0).await(9, {pair.streams[1], 0}, StreamPlace::kNone);
      pair.session.settle();
      if (!signal_first) signal();
    }
    EXPECT_TRUE(pair.session.core(1).peer(0).lost().ok());
    pair.expect_streams_free();
  }
}

TEST(EventTest, ASignalWithoutAPlaceMayOutliveThePeer) {
  TwoWorkers pair("tcp");
  Core& core = pair.session.core(0);
  core.peer(1).signal(9, {}, StreamPlace::kNone, Status::from_cuda(400, "cuEventRecord"));
  core.peer(1).lose({Code::kUnavailable, "enough"});
  pair.session.settle();
  pair.expect_streams_free();
}

TEST(EventTest, ASecondWaitForASignalIsAnError) {
  TwoWorkers pair("tcp");
  const uint64_t other = pair.b().make_stream();
  pair.session.core(1).peer(0).await(9, {pair.streams[1], 0}, place_in(pair.b(), pair.streams[1]));
  pair.session.core(1).peer(0).await(9, {other, 0}, place_in(pair.b(), other));
  pair.session.settle();
  EXPECT_TRUE(pair.b().stream_idle(other));
  EXPECT_EQ(pair.b().stream_errors(other).size(), 1u);
  pair.session.core(0).peer(1).signal(9, {pair.streams[0], 0},
                                      *pair.a().enter({pair.streams[0], 0}, false), {});
  pair.session.settle();
  pair.expect_streams_free();
  EXPECT_TRUE(pair.b().stream_errors(pair.streams[1]).empty());
}

TEST(EventTest, ALostPeerReleasesAwaitingStreamsWithAnError) {
  TwoWorkers pair("tcp");
  pair.session.core(1).peer(0).await(1, {pair.streams[1], 0}, place_in(pair.b(), pair.streams[1]));
  pair.session.settle();
  EXPECT_FALSE(pair.b().stream_idle(pair.streams[1]));
  pair.cable.cut();
  pair.session.settle();
  pair.expect_streams_free();
  EXPECT_EQ(pair.b().stream_errors(pair.streams[1]).size(), 1u);
}

}  // namespace
}  // namespace rcuda::p2p
