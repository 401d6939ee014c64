// The engine makes driver calls that may wait for the device only in a pause (DeviceOps::pause());
// other work continues before it. (In every test, SimDevices records such a call outside of a pause
// as a violation.)
#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/raw_peer.h"
#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

constexpr size_t kBytes = 1 << 20;

CopyRequest copy_between(SimSession& session, size_t from, size_t to) {
  CopyRequest request;
  request.from = from;
  request.to = to;
  request.source =
      Shape::plain(address_of(session.workers[from].devices->make_memory(kBytes)), kBytes);
  request.destination =
      Shape::plain(address_of(session.workers[to].devices->make_memory(kBytes)), kBytes);
  return request;
}

// Three servers: a connection is made while a copy over another connection holds a stream. If the
// new connection's memory were registered now, the driver would wait for the stream, which waits
// for the thread that registers.
TEST(PauseTest, AConnectionIsMadeWhenNoStreamIsHeldForAnotherPeer) {
  for (const char* medium : {"shm", "tcp"}) {
    SimSession session("auto", quiet_options());
    for (int i = 0; i < 3; ++i) session.add();
    session.connect(0, 1, medium);
    session.settle();
    ASSERT_TRUE(session.core(0).peer(1).open());

    // The destination's stream runs a kernel first, so the source's stream is held for long.
    SimDevices& source = *session.workers[0].devices;
    SimDevices& destination = *session.workers[1].devices;
    CopyRequest request = copy_between(session, 0, 1);
    request.source_stream = source.make_stream();
    request.destination_stream = destination.make_stream();
    bool kernel_over = false;
    destination.run_kernel(request.destination_stream, 1e6, [&] { kernel_over = true; });
    const auto copy = start_copy(session, request);
    const size_t registered = source.registered();

    session.connect(0, 2, medium);
    ASSERT_FALSE(session.run([&] { return session.core(0).peer(2).open() && !kernel_over; }));
    EXPECT_EQ(source.registered() > registered, kernel_over);
    session.settle();
    EXPECT_TRUE(copy->over());
    EXPECT_TRUE(copy->source.ok() && copy->destination.ok());
    EXPECT_TRUE(session.core(0).peer(2).open());
    EXPECT_TRUE(session.core(2).peer(0).open());
    const auto next = start_copy(session, copy_between(session, 2, 0));
    session.settle();
    EXPECT_TRUE(next->over());
    EXPECT_TRUE(next->source.ok() && next->destination.ok());
  }
}

TEST(PauseTest, WithoutAPauseTheGreetingWaitsAndCopiesWithIt) {
  SimSession session("auto", quiet_options());
  session.add().allow_pauses(Pause::kNone);
  session.add();
  session.connect(0, 1, "tcp");
  const auto copy = start_copy(session, copy_between(session, 0, 1));
  session.settle();
  EXPECT_FALSE(session.core(0).peer(1).open());
  EXPECT_TRUE(session.core(0).peer(1).lost().ok());
  EXPECT_TRUE(session.core(0).polling());
  EXPECT_EQ(session.workers[0].devices->registered(), 0u);
  EXPECT_FALSE(copy->source_over);
  session.workers[0].devices->allow_pauses(Pause::kHolds);
  session.settle();
  EXPECT_TRUE(session.core(0).peer(1).open());
  EXPECT_TRUE(copy->over());
  EXPECT_TRUE(copy->source.ok() && copy->destination.ok());
  session.workers[0].devices->allow_pauses(Pause::kWork);  // the end of the session needs it
}

TEST(PauseTest, AMessageThatComesMeanwhileIsTakenAfterwards) {
  SimSession session("auto", quiet_options());
  SimDevices& devices = session.add();
  devices.allow_pauses(Pause::kNone);
  RawPeer peer(session);
  peer.greet();  // the Offer arrives before this side has sent its own
  EXPECT_TRUE(peer.alive());
  EXPECT_FALSE(peer.open());
  EXPECT_FALSE(session.core(0).pending());  // another round could handle nothing
  peer.send(EchoMessage{});
  EXPECT_FALSE(peer.receive<OfferMessage>());
  devices.allow_pauses(Pause::kWork);
  session.settle();
  EXPECT_TRUE(peer.open());
  EXPECT_TRUE(peer.receive<OfferMessage>());
}

TEST(PauseTest, ALinkThatBreaksMeanwhileIsLost) {
  SimSession session("auto", quiet_options());
  session.add().allow_pauses(Pause::kNone);
  session.add();
  SimLinkPair pair = session.connect(0, 1, "tcp");
  session.settle();
  ASSERT_FALSE(session.core(0).peer(1).open());
  ASSERT_TRUE(session.core(0).peer(1).lost().ok());
  pair.cut();
  session.settle();
  EXPECT_FALSE(session.core(0).peer(1).lost().ok());
  // Its memory is freed in a kWork pause.
  EXPECT_NE(session.core(0).peer(1).link(), nullptr);
  session.workers[0].devices->allow_pauses(Pause::kWork);
  session.settle();
  EXPECT_EQ(session.core(0).peer(1).link(), nullptr);
  EXPECT_EQ(session.workers[0].devices->registered(), 0u);
}

// The measurements end although the program is never idle.
TEST(PauseTest, MeasurementsNeedNoIdleProgram) {
  SimSession session;
  session.add().allow_pauses(Pause::kHolds);
  session.add();
  session.connect(0, 1, "shm");
  session.settle();
  EXPECT_TRUE(session.core(0).peer(1).idle());
  const auto forecast = session.core(0).peer(1).forecast(0, 0, kBytes);
  ASSERT_TRUE(forecast.ok());
  EXPECT_TRUE(forecast->measured);
  session.workers[0].devices->allow_pauses(Pause::kWork);  // the end of the session needs it
}

}  // namespace
}  // namespace rcuda::p2p
