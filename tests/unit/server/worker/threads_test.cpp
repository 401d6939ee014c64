// A worker that may start no further threads. A request that needs a thread gets an error with this
// reason, and the session continues. Host functions need no thread.
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "server/executor/answers/output_capture.h"
#include "server/executor/peers/peer_hub.h"
#include "tests/support/session_harness.h"
#include "tests/support/thread_limit.h"

namespace rcuda::server {
namespace {

using test::ThreadLimit;

constexpr p2p::PeerId kLink = 4;

void expect_mend(const Status& status) {
  EXPECT_EQ(status.code(), Code::kOutOfMemory) << status.message();
  EXPECT_NE(status.context().find("ulimit -u"), std::string::npos) << status.message();
}

class WorkerThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSetCurrent(context_), CUDA_SUCCESS);
    PeerHub::Options options;
    options.report = [this](const std::string& line) { reports_.push_back(line); };
    hub_ = std::make_unique<PeerHub>(driver(), std::move(options));
  }
  void TearDown() override {
    hub_.reset();
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }

  static const api::DriverTable& driver() { return test::TestDriver::get().table; }
  Status introduce() {
    PeerHub::Introduction introduction;
    introduction.link = kLink;
    introduction.worker = 1;
    return hub_->introduce(introduction, {{0, context_}});
  }

  CUcontext context_ = nullptr;
  std::unique_ptr<PeerHub> hub_;
  std::vector<std::string> reports_;
};

TEST_F(WorkerThreads, WithoutAnEngineNoPeerIsKnown) {
  {
    const ThreadLimit limit(0);
    expect_mend(introduce());
  }
  EXPECT_FALSE(hub_->knows(kLink));
  EXPECT_FALSE(hub_->active());
  EXPECT_FALSE(hub_->holding());
}

TEST_F(WorkerThreads, WithoutAThreadToConnectCopiesEndWithTheReason) {
  {
    const ThreadLimit limit(1);  // for the engine
    EXPECT_TRUE(introduce().ok());
    EXPECT_EQ(limit.refused(), 1);
  }
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_NE(reports_[0].find("ulimit -u"), std::string::npos) << reports_[0];
  ASSERT_TRUE(hub_->knows(kLink));
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  p2p::PeerCopy copy;
  copy.id = 1;
  copy.peer = kLink;
  copy.outgoing = true;
  copy.done = [&](const Status& status) {
    expect_mend(status);
    std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  };
  EXPECT_TRUE(hub_->copy(std::move(copy), {}).ok());
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over; });
  EXPECT_TRUE(hub_->is_decided(kLink));
}

TEST(Threads, OutputThatCannotBeCapturedStays) {
  const ThreadLimit limit(0);
  expect_mend(OutputCapture::start().status());
  EXPECT_EQ(limit.refused(), 1);
  // Descriptor 1 is not a pipe of the capture.
  EXPECT_GE(::write(1, "\n", 1), 1);
}

TEST(Threads, AHostFunctionNeedsNone) {
  test::SessionHarness session;
  test::ProtocolClient& client = session.client();
  const ThreadLimit limit(0, ThreadLimit::Of::kProcess);
  ASSERT_TRUE(client.post(wire::Custom::kLaunchHost, wire::LaunchHostBody{4711, 0, 0}).ok());
  ASSERT_TRUE(client.post(wire::Custom::kSignal, wire::SignalBody{0, 9, 1}).ok());
  const std::vector<std::byte> frame = client.next_event();
  wire::HostCallbackEvent event{};
  ASSERT_EQ(frame.size(), sizeof event);
  std::memcpy(&event, frame.data(), sizeof event);
  EXPECT_EQ(event.callback, 4711u);
  EXPECT_EQ(limit.refused(), 1);
  EXPECT_FALSE(client.word_reached(9, 1));
  client.acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client.wait_word(9, 1), CUDA_SUCCESS);
}

}  // namespace
}  // namespace rcuda::server
