// A client introduces its worker to addresses that are not servers of its session, also in floods.
// It must find out nothing about these addresses, and must use few threads of the worker.
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/log_forward.h"
#include "common/wire/address_ranges.h"
#include "server/executor/peers/peer_hub.h"
#include "tests/support/host_name.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

class IntroductionsTest : public ::testing::Test {
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

  void make_hub(std::chrono::milliseconds timeout) {
    PeerHub::Options options;
    options.handshake_timeout = timeout;
    options.planner = *p2p::parse_planner_options("auto", "tcp");
    options.report = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      reports_.push_back(line);
      changed_.notify_all();
    };
    hub_ = std::make_unique<PeerHub>(driver(), std::move(options));
  }
  Status introduce(p2p::PeerId link, uint32_t worker, uint16_t port,
                   const std::string& host = "127.0.0.1") {
    PeerHub::Introduction introduction;
    introduction.link = link;
    introduction.worker = worker;
    introduction.connects = true;
    introduction.host = host;
    introduction.port = port;
    return hub_->introduce(introduction, {{0, context_}});
  }
  // Starts a copy over the link and returns its outcome.
  Status outcome_over(p2p::PeerId link) {
    std::optional<Status> outcome;
    p2p::PeerCopy copy;
    copy.id = link;
    copy.peer = link;
    copy.done = [&](const Status& status) {
      std::lock_guard lock(mutex_);
      outcome = status;
      changed_.notify_all();
    };
    EXPECT_TRUE(hub_->copy(std::move(copy), {}).ok());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return outcome.has_value(); });
    return *outcome;
  }

  CUcontext context_ = nullptr;
  std::unique_ptr<PeerHub> hub_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> reports_;
};

// Another program listens at the ports, or no program does. The client cannot distinguish the
// cases.
TEST_F(IntroductionsTest, TellNothingOfPorts) {
  uint16_t closed = 0, silent = 0, talks = 0;
  test::bind_tcp("127.0.0.1", &closed).reset();
  const UniqueFd listening = test::bind_tcp("127.0.0.1", &silent);
  ASSERT_EQ(::listen(listening.get(), 8), 0);
  const UniqueFd talking = test::bind_tcp("127.0.0.1", &talks);
  ASSERT_EQ(::listen(talking.get(), 8), 0);
  std::thread talker([&] {
    const UniqueFd caller(::accept(talking.get(), nullptr, nullptr));
    const char greeting[] = "SSH-2.0-something at this port\r\n";
    (void)::send(caller.get(), greeting, sizeof greeting, MSG_NOSIGNAL);
  });
  make_hub(std::chrono::milliseconds(400));
  ASSERT_TRUE(introduce(1, 1, closed).ok());
  ASSERT_TRUE(introduce(2, 2, silent).ok());
  ASSERT_TRUE(introduce(3, 3, talks).ok());
  ASSERT_TRUE(introduce(4, 4, 1, "host-that-is-nowhere.invalid").ok());
  std::set<std::string> answers;
  for (p2p::PeerId link = 1; link <= 4; ++link) answers.insert(outcome_over(link).message());
  talker.join();
  EXPECT_EQ(answers.size(), 1u) << *answers.begin() << " / " << *answers.rbegin();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reports_.size() == 4; });
  for (const std::string& line : reports_) {
    EXPECT_NE(line.find("the two servers have not connected in time"), std::string::npos) << line;
  }
}

std::atomic<bool> logged{false};

// The worker notices immediately that no program listens, but does not report that before the
// timeout.
TEST_F(IntroductionsTest, TellNothingBeforeTheTimeout) {
  uint16_t closed = 0;
  test::bind_tcp("127.0.0.1", &closed).reset();
  make_hub(std::chrono::hours(1));
  forward_log([](LogLevel, const char* text) {
    if (std::string(text).find("Connection refused") != std::string::npos) logged = true;
  });
  ASSERT_TRUE(introduce(1, 1, closed).ok());
  while (!logged) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  forward_log(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time for a report
  EXPECT_FALSE(hub_->is_decided(1));
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(reports_.empty());
}

TEST_F(IntroductionsTest, AWorkerHasOneAddress) {
  make_hub(std::chrono::hours(1));
  EXPECT_TRUE(introduce(1, 1, 1).ok());
  EXPECT_EQ(introduce(2, 1, 2).code(), Code::kProtocol);
  EXPECT_EQ(introduce(2, 1, 1, "127.0.0.2").code(), Code::kProtocol);
  hub_->shut();
  EXPECT_EQ(introduce(3, 1, 2).code(), Code::kProtocol) << "a reset changes nothing";
  EXPECT_TRUE(introduce(3, 1, 1).ok());
}

TEST_F(IntroductionsTest, ASessionHasALimitedNumberOfWorkers) {
  make_hub(std::chrono::milliseconds(20));
  for (uint32_t worker = 1; worker < wire::kMostServers; ++worker) {
    Status status = introduce(worker, worker, 1);
    while (status.code() == Code::kUnavailable) {  // too many attempts at the same time
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      status = introduce(worker, worker, 1);
    }
    ASSERT_TRUE(status.ok()) << status.message();
  }
  while (introduce(wire::kMostServers + 1, 1, 1).code() == Code::kUnavailable) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(introduce(wire::kMostServers, 0, 1).code(), Code::kInvalidArgument);
  EXPECT_FALSE(hub_->knows(wire::kMostServers));
}

TEST_F(IntroductionsTest, NumbersThatNoClientHasAreRefused) {
  make_hub(std::chrono::hours(1));
  EXPECT_EQ(introduce(1, 0x0a'0d'0a'0d, 1).code(), Code::kProtocol);
  EXPECT_EQ(introduce(0x0a'0d'0a'0d, 1, 1).code(), Code::kProtocol);
  EXPECT_EQ(introduce(1, 1, 1, std::string(256, 'a')).code(), Code::kProtocol);
}

int threads_of_this_process() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return 0;
}

// Each address accepts and stays silent, so every attempt lasts until its timeout.
TEST_F(IntroductionsTest, AFloodHasAFewThreads) {
  uint16_t port = 0;
  const UniqueFd listening = test::bind_tcp("127.0.0.1", &port);
  ASSERT_EQ(::listen(listening.get(), 1024), 0);
  make_hub(std::chrono::hours(1));
  ASSERT_TRUE(introduce(1, 1, port).ok());  // makes the engine with its threads
  const int before = threads_of_this_process();
  int accepted = 0, refused = 0;
  for (p2p::PeerId link = 2; link < 5000; ++link) {
    const Status status = introduce(link, 1, port);
    (status.ok() ? accepted : refused) += 1;
    EXPECT_TRUE(status.ok() || status.code() == Code::kUnavailable) << status.message();
  }
  EXPECT_LT(accepted, 64);
  EXPECT_GT(accepted, 15);
  EXPECT_LE(threads_of_this_process(), before + 64);
  // Resets do not allow more attempts: abandoned attempts count as failed.
  for (p2p::PeerId link = 5000; link < 5100; ++link) {
    hub_->shut();
    EXPECT_FALSE(introduce(link, 1, port).ok());
  }
  EXPECT_FALSE(hub_->active());
}

TEST_F(IntroductionsTest, RoomComesBackWhenFailuresAreOld) {
  uint16_t closed = 0;
  test::bind_tcp("127.0.0.1", &closed).reset();
  make_hub(std::chrono::milliseconds(200));
  p2p::PeerId link = 1;
  while (introduce(link, 1, closed).ok()) ++link;
  while (!introduce(link, 1, closed).ok())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(outcome_over(1).code(), Code::kUnavailable);
  EXPECT_TRUE(hub_->knows(link));
}

// ---- over the wire -----------------------------------------------------------------------------

Status send_introduction(test::ProtocolClient& client, uint32_t link, uint32_t worker,
                         uint16_t port) {
  const std::string host = "127.0.0.1";
  wire::PeerIntroduceBody body{};
  body.link = link;
  body.worker = worker;
  body.connects = 1;
  body.port = port;
  body.host_bytes = static_cast<uint16_t>(host.size());
  return client.post(wire::Custom::kPeerIntroduce, body, std::as_bytes(std::span(host)));
}

// One session floods; the other gets its right results.
TEST(IntroductionFloodTest, AGoodSessionBesideAFloodIsServed) {
  uint16_t port = 0;
  const UniqueFd listening = test::bind_tcp("127.0.0.1", &port);
  ASSERT_EQ(::listen(listening.get(), 1024), 0);
  test::SessionHarness hostile, good;
  std::atomic<bool> over{false};
  std::thread flood([&] {
    for (uint32_t link = 1; link < 5000 && !over; ++link) {
      if (!send_introduction(hostile.client(), link, 1 + link % 15, port).ok()) return;
    }
  });
  for (int round = 0; round < 200; ++round) {
    const auto pong = good.client().call(static_cast<uint16_t>(wire::Custom::kPing), {});
    ASSERT_TRUE(pong && pong->result == CUDA_SUCCESS);
  }
  over = true;
  flood.join();
  const auto pong = hostile.client().call(static_cast<uint16_t>(wire::Custom::kPing), {});
  EXPECT_TRUE(pong && pong->result == CUDA_SUCCESS);
  EXPECT_TRUE(good.end().ok());
  EXPECT_TRUE(hostile.end().ok());
}

TEST(IntroductionFloodTest, ASecondAddressEndsTheSession) {
  test::SessionHarness session;
  ASSERT_TRUE(send_introduction(session.client(), 1, 1, 1).ok());
  ASSERT_TRUE(send_introduction(session.client(), 2, 1, 2).ok());
  EXPECT_EQ(session.wait_end().code(), Code::kProtocol);
}

}  // namespace
}  // namespace rcuda::server
