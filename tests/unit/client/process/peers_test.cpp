#include "client/process/peers.h"

#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "client/route/host_functions.h"
#include "client/session/capture_answers.h"
#include "common/base/peer_order.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class PeersTest : public TwoPuppetsTest {
 protected:
  struct Introduction {
    wire::PeerIntroduceBody body;
    std::string host;
  };
  static std::vector<Introduction> read(const std::vector<Command>& commands) {
    std::vector<Introduction> introductions;
    for (const Command& command : commands) {
      const auto host = command.behind<wire::PeerIntroduceBody>();
      introductions.push_back({command.as<wire::PeerIntroduceBody>(),
                               {reinterpret_cast<const char*>(host.data()), host.size()}});
    }
    return introductions;
  }
  std::vector<Introduction> at_first() { return read(sent(wire::Custom::kPeerIntroduce)); }
  std::vector<Introduction> at_second() {
    return read(sent_to_second(wire::Custom::kPeerIntroduce));
  }
};

TEST_F(PeersTest, BothWorkersLearnOneSecretAndOneOfThemConnects) {
  Peers peers;
  (void)at_first(), (void)at_second();
  uint32_t link = 0;
  ASSERT_EQ(peers.link(second_session(), first_session(), &link), CUDA_SUCCESS);
  const auto one = at_first(), two = at_second();
  ASSERT_EQ(one.size(), 1u);
  ASSERT_EQ(two.size(), 1u);
  EXPECT_EQ(one[0].body.link, link);
  EXPECT_EQ(two[0].body.link, link);
  EXPECT_EQ(std::memcmp(one[0].body.token, two[0].body.token, sizeof one[0].body.token), 0);
  EXPECT_EQ(one[0].body.connects + two[0].body.connects, 1u);
  // Each worker is introduced to the other.
  EXPECT_EQ(one[0].body.worker, 1u);
  EXPECT_EQ(one[0].body.port, second().port());
  EXPECT_EQ(two[0].body.worker, 0u);
  EXPECT_EQ(two[0].body.port, first().port());
  EXPECT_EQ(one[0].host, "127.0.0.1");
  EXPECT_EQ(one[0].body.host_bytes, one[0].host.size());
}

TEST_F(PeersTest, TheyAreIntroducedOnceWhoeverAsks) {
  Peers peers;
  (void)at_first();
  uint32_t link = 0, again = 0;
  ASSERT_EQ(peers.link(first_session(), second_session(), &link), CUDA_SUCCESS);
  ASSERT_EQ(peers.link(second_session(), first_session(), &again), CUDA_SUCCESS);
  EXPECT_EQ(link, again);
  peers.introduce_all(process().sessions());
  EXPECT_EQ(at_first().size(), 1u);
}

TEST_F(PeersTest, AfterALossOfConnectionsAnotherSecretIsUsed) {
  Peers peers;
  (void)at_first();
  uint32_t link = 0, again = 0;
  ASSERT_EQ(peers.link(first_session(), second_session(), &link), CUDA_SUCCESS);
  peers.forget(second_session());
  ASSERT_EQ(peers.link(first_session(), second_session(), &again), CUDA_SUCCESS);
  EXPECT_NE(link, again);
  const auto told = at_first();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_NE(std::memcmp(told[0].body.token, told[1].body.token, sizeof told[0].body.token), 0);
}

TEST_F(PeersTest, ALostWorkerIsIntroducedToNobody) {
  Peers peers;
  LoneSession lone;
  lone.puppet.link().close();
  while (!lone.session->lost()) std::this_thread::yield();
  (void)at_first();
  uint32_t link = 0;
  EXPECT_EQ(peers.link(first_session(), *lone.session, &link), kSessionLost);
  EXPECT_TRUE(at_first().empty());
}

TEST_F(PeersTest, NumbersOfCopiesAreUsedOnce) {
  Peers peers;
  const uint64_t first = peers.next_id();
  EXPECT_NE(first, 0u);
  EXPECT_NE(peers.next_id(), first);
}

// ---- host functions ----

class HostFunctionsTest : public TwoPuppetsTest {};

TEST_F(HostFunctionsTest, GoToTheStreamsWorkerUnderANumberOfItsOwn) {
  (void)sent(wire::Custom::kLaunchHost);
  EXPECT_EQ(launch_host_function(
                nullptr, [](void*) {}, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(launch_stream_callback(nullptr, [](CUresult) {}), CUDA_SUCCESS);
  const auto commands = sent(wire::Custom::kLaunchHost);
  ASSERT_EQ(commands.size(), 2u);
  const auto function = commands[0].as<wire::LaunchHostBody>();
  const auto callback = commands[1].as<wire::LaunchHostBody>();
  EXPECT_NE(function.callback, callback.callback);
  EXPECT_EQ(function.is_stream_callback, 0u);
  EXPECT_EQ(callback.is_stream_callback, 1u);
  EXPECT_EQ(commands[0].header.context, current_context().get()->id);
  first_session().events().remove_callback(function.callback);
  first_session().events().remove_callback(callback.callback);
}

TEST_F(HostFunctionsTest, MayNotCallCuda) {
  std::atomic<int> inside{-1};
  ASSERT_EQ(launch_stream_callback(nullptr, [&](CUresult) { inside = Process::get().check(); }),
            CUDA_SUCCESS);
  const auto body = sent(wire::Custom::kLaunchHost).back().as<wire::LaunchHostBody>();
  wire::HostCallbackEvent event{};
  event.header = {wire::Event::kHostCallback, 32};
  event.callback = body.callback;
  event.sequence = 1;
  first().send_event(std::as_bytes(std::span(&event, 1)));
  while (inside.load() == -1) std::this_thread::yield();
  EXPECT_EQ(inside.load(), CUDA_ERROR_NOT_PERMITTED);
}

// With RCUDA_SYNC, and for commands that the server lacks, the call itself gets the error.
TEST_F(HostFunctionsTest, ARefusedOneIsForgotten) {
  uint64_t callback = 0;
  first().on(wire::Custom::kLaunchHost, [&](const Command& command) {
    callback = command.as<wire::LaunchHostBody>().callback;
    return test::PuppetServer::Answer{CUDA_ERROR_NOT_SUPPORTED, {}};
  });
  {
    const CaptureAnswers answers(true);
    EXPECT_EQ(launch_stream_callback(nullptr, [](CUresult) {}), CUDA_ERROR_NOT_SUPPORTED);
  }
  after_peer(&first());
  first().on(wire::Custom::kLaunchHost, nullptr);
  EXPECT_NE(callback, 0u);
  EXPECT_FALSE(first_session().events().remove_callback(callback));
}

TEST_F(HostFunctionsTest, NeedAStream) {
  int no_stream = 0;
  EXPECT_EQ(launch_host_function(
                reinterpret_cast<CUstream>(&no_stream), [](void*) {}, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace rcuda::client
