// A worker waits for another worker to connect, but the connection fails or another caller
// connects. The copies must end with an error, and the wait must end too.
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/reach/socket_keys.h"
#include "common/tls/keyed.h"
#include "server/executor/peers/peer_hub.h"
#include "tests/support/session_harness.h"
#include "tests/support/tcp_sockets.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr p2p::PeerId kLink = 4;

class PeerCallersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  void TearDown() override {
    hub_.reset();
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }
  static const api::DriverTable& driver() { return test::TestDriver::get().table; }

  void make_hub(std::chrono::milliseconds patience = std::chrono::seconds(60)) {
    PeerHub::Options options;
    options.handshake_timeout = patience;
    hub_ = std::make_unique<PeerHub>(driver(), std::move(options));
  }
  void wait_for_a_caller(std::chrono::milliseconds patience = std::chrono::seconds(60)) {
    make_hub(patience);
    introduce({});
  }
  void introduce(PeerHub::Introduction introduction) {
    introduction.link = kLink;
    ASSERT_TRUE(hub_->introduce(introduction, {{0, context_}}).ok());
    EXPECT_EQ(hub_->introduce(introduction, {{0, context_}}).code(), Code::kInvalidArgument);
    p2p::PeerCopy copy;
    copy.id = 1;
    copy.peer = kLink;
    copy.done = [this](const Status& status) {
      std::lock_guard lock(mutex_);
      outcome_ = status;
      changed_.notify_all();
    };
    ASSERT_TRUE(hub_->copy(std::move(copy), {}).ok());
  }
  // Passes a connection to the worker, as the daemon does. Returns the other worker's end.
  UniqueFd call(const char* medium, uint32_t link = kLink, uint32_t stream = 0) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    wire::PeerHello hello;
    hello.link = link;
    hello.stream = stream;
    hello.medium = medium;
    hub_->accept_caller(hello, UniqueFd(ends[0]));
    return UniqueFd(ends[1]);
  }
  // As call(), for connections that are to be encrypted.
  UniqueFd call_over_tcp() {
    auto [theirs, ours] = test::tcp_pair().value();
    wire::PeerHello hello;
    hello.link = kLink;
    hello.medium = "tcp";
    hub_->accept_caller(hello, std::move(ours));
    return std::move(theirs);
  }
  static PeerHub::Introduction encrypted() {
    PeerHub::Introduction introduction;
    introduction.encrypted = true;
    introduction.token.fill(std::byte{0x5a});
    return introduction;
  }
  static Result<Socket> encrypt(const UniqueFd& socket, uint32_t stream) {
    tls::Key secret;
    secret.fill(0x5a);
    return tls::encrypt(UniqueFd(::dup(socket.get())),
                        wire::peer_socket_key(secret, kLink, stream, 0), tls::Role::kClient,
                        Clock::now() + std::chrono::seconds(60));
  }
  static void expect_encrypted_welcome(const UniqueFd& caller) {
    Result<Socket> socket = encrypt(caller, 0);
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    const auto answer = wire::read_message(*socket, Clock::now() + std::chrono::seconds(60));
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->first, wire::MessageType::kPeerWelcome);
  }
  static void expect_welcome(const UniqueFd& socket) {
    const auto answer = wire::read_message(socket.get(), Clock::now() + std::chrono::seconds(60));
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->first, wire::MessageType::kPeerWelcome);
  }
  Status outcome() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return outcome_.has_value(); });
    return *outcome_;
  }

  CUcontext context_ = nullptr;
  std::unique_ptr<PeerHub> hub_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> outcome_;
};

TEST_F(PeerCallersTest, ACallerThatLeavesEndsTheCopies) {
  for (const char* medium : {"shm", "tcp"}) {
    outcome_.reset();
    wait_for_a_caller();
    UniqueFd caller = call(medium);
    expect_welcome(caller);
    caller.reset();
    EXPECT_EQ(outcome().code(), Code::kUnavailable) << outcome().message();
    EXPECT_TRUE(hub_->is_decided(kLink));
  }
}

TEST_F(PeerCallersTest, ACallerThatSpeaksAnotherProtocolEndsTheCopies) {
  for (const char* medium : {"shm", "tcp"}) {
    outcome_.reset();
    wait_for_a_caller();
    const UniqueFd caller = call(medium);
    expect_welcome(caller);
    const std::array<char, 4096> nonsense{'n', 'o'};
    ASSERT_EQ(::send(caller.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(nonsense.size()));
    EXPECT_EQ(outcome().code(), Code::kProtocol) << outcome().message();
  }
}

// No worker was introduced with these link or stream numbers.
TEST_F(PeerCallersTest, CallersOfOtherNamesAreNoSubstitute) {
  wait_for_a_caller(std::chrono::milliseconds(300));
  const UniqueFd stale = call("shm", kLink + 1);
  const UniqueFd stream = call("shm", kLink, 3);
  const UniqueFd odd = call("shm", UINT32_MAX, UINT32_MAX);
  EXPECT_EQ(outcome().code(), Code::kTimeout) << outcome().message();
}

// An attacker has seen the PeerHello on the network and sends it again.
TEST_F(PeerCallersTest, ASecondCallerOfANameTakesNoPlace) {
  make_hub();
  const UniqueFd first = call("tcp"), second = call("tcp");
  introduce({});
  expect_welcome(first);
  char byte;
  EXPECT_EQ(::recv(second.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  hub_->shut();
}

TEST_F(PeerCallersTest, ACallerWithoutTheKeyTakesNoPlace) {
  make_hub();
  const UniqueFd stranger = call_over_tcp(), peer = call_over_tcp();
  introduce(encrypted());
  // The caller uses the key of another socket of this Link.
  EXPECT_FALSE(encrypt(stranger, 1).ok());
  expect_encrypted_welcome(peer);
  hub_->shut();
}

TEST_F(PeerCallersTest, ACallerThatSaysNothingLeavesTimeForTheNextOne) {
  make_hub(std::chrono::seconds(8));
  const UniqueFd silent = call_over_tcp(), peer = call_over_tcp();
  introduce(encrypted());
  expect_encrypted_welcome(peer);
  hub_->shut();
}

TEST_F(PeerCallersTest, AFloodOfCallersLeavesRoomForNoMore) {
  wait_for_a_caller();
  std::vector<UniqueFd> flood;
  for (uint32_t i = 0; i < 1100; ++i) {
    flood.push_back(call("shm", kLink + 1 + i));
    if (i == 1050) {  // beyond the limit, a connection is closed at once
      char byte;
      EXPECT_EQ(::recv(flood.back().get(), &byte, 1, 0), 0);
    }
  }
  hub_->shut();
  EXPECT_FALSE(outcome().ok());
}

TEST_F(PeerCallersTest, ShuttingEndsTheWaiting) {
  wait_for_a_caller();
  hub_->shut();
  EXPECT_EQ(outcome().code(), Code::kUnavailable) << outcome().message();
  EXPECT_FALSE(hub_->active());
}

// A reset runs on the executor thread, so it must not wait for a worker that has connected and
// stays silent. State of the previous introduction must not affect the next introduction.
TEST_F(PeerCallersTest, ShuttingDoesNotWaitForACallerThatIsSilent) {
  for (const char* medium : {"shm", "tcp"}) {
    outcome_.reset();
    wait_for_a_caller(std::chrono::hours(1));
    const UniqueFd silent = call(medium);
    expect_welcome(silent);
    hub_->shut();
    EXPECT_EQ(outcome().code(), Code::kUnavailable) << outcome().message();
    PeerHub::Introduction again;
    again.link = kLink;
    ASSERT_TRUE(hub_->introduce(again, {{0, context_}}).ok());
    expect_welcome(call(medium));
  }
}

}  // namespace
}  // namespace rcuda::server
