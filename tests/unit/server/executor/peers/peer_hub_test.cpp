// Connections of a worker to other workers, on softgpu: how they end.
#include "server/executor/peers/peer_hub.h"

#include <atomic>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/support/host_name.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

// A reset ends the copies in progress. A caller that waits to free their memory must be notified.
TEST(PeerHub, TellsWhoWaitsForMemoryWhenItIsShut) {
  const api::DriverTable& driver = test::TestDriver::get().table;
  constexpr size_t kBytes = 1u << 20;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemAlloc_v2(&memory, kBytes), CUDA_SUCCESS);
  {
    PeerHub::Options options;
    options.handshake_timeout = std::chrono::hours(1);  // the other worker never connects
    PeerHub hub(driver, options);
    PeerHub::Introduction introduction;
    introduction.link = 1;
    introduction.worker = 1;
    ASSERT_TRUE(hub.introduce(introduction, {{0, context}}).ok());

    std::atomic<int> ended{0};
    std::atomic<int> unused{0};
    p2p::PeerCopy copy;
    copy.id = 1;
    copy.peer = introduction.link;
    copy.outgoing = true;
    copy.memory = {memory, kBytes};
    copy.done = [&](const Status& status) {
      EXPECT_EQ(status.code(), Code::kUnavailable);
      ++ended;
    };
    ASSERT_TRUE(hub.copy(std::move(copy), {}).ok());
    hub.when_unused(memory, kBytes, [&] { ++unused; });
    EXPECT_EQ(unused, 0);
    hub.shut();
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(unused, 1);
    // Without a peer no copy uses memory.
    hub.when_unused(memory, kBytes, [&] { ++unused; });
    EXPECT_EQ(unused, 2);
  }
  driver.cuMemFree_v2(memory);
  driver.cuDevicePrimaryCtxRelease_v2(0);
}

// The executor resets a device while another worker's server, which has accepted a connection,
// stays silent.
TEST(PeerHub, ShuttingDoesNotWaitForAServerThatIsSilent) {
  const api::DriverTable& driver = test::TestDriver::get().table;
  CUcontext context = nullptr;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  uint16_t port = 0;
  const UniqueFd listening = test::bind_tcp("127.0.0.1", &port);
  ASSERT_EQ(::listen(listening.get(), 8), 0);
  {
    std::atomic<int> reports{0};
    PeerHub::Options options;
    options.handshake_timeout = std::chrono::hours(1);
    options.planner.route = p2p::Route::kTcp;
    options.report = [&](const std::string&) { ++reports; };
    PeerHub hub(driver, options);
    PeerHub::Introduction introduction;
    introduction.connects = true;
    introduction.host = "127.0.0.1";
    introduction.port = port;
    for (p2p::PeerId link = 1; link <= 3; ++link) {
      introduction.link = link;
      ASSERT_TRUE(hub.introduce(introduction, {{0, context}}).ok());
      const UniqueFd silent(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ASSERT_TRUE(silent);
      hub.shut();
      EXPECT_FALSE(hub.active());
      EXPECT_FALSE(hub.knows(link));
    }
    EXPECT_EQ(reports, 0);  // abandoned connections are not reported as errors
  }
  driver.cuDevicePrimaryCtxRelease_v2(0);
}

TEST(PeerHub, AllConnectionsGoToOneHost) {
  const api::DriverTable& driver = test::TestDriver::get().table;
  CUcontext context = nullptr;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  {
    const test::MovingHost host;
    PeerHub::Options options;
    options.planner = *p2p::parse_planner_options("auto", "tcp");
    PeerHub hub(driver, options);
    PeerHub::Introduction introduction;
    introduction.link = 1;
    introduction.connects = true;
    introduction.host = test::HostName::kName;
    introduction.port = host.port();
    ASSERT_TRUE(hub.introduce(introduction, {{0, context}}).ok());

    const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
    test::MovingHost::Caller caller = host.accept();
    EXPECT_TRUE(caller.to_first);
    const int socket = caller.socket.get();
    EXPECT_TRUE(wire::read_message(socket, soon()).ok());
    EXPECT_TRUE(wire::write_message(socket, wire::MessageType::kPeerWelcome, {}, soon()).ok());
    transport::Bootstrap bootstrap;
    bootstrap.control = std::move(caller.socket);
    bootstrap.server = true;
    bootstrap.accept_stream = [&host](int) -> Result<Socket> {
      EXPECT_TRUE(host.accept().to_first);
      return Status(Code::kUnavailable, "that was to be seen");
    };
    EXPECT_FALSE(transport::make_link(*options.planner.medium, std::move(bootstrap), {}).ok());
  }
  driver.cuDevicePrimaryCtxRelease_v2(0);
}

}  // namespace
}  // namespace rcuda::server
