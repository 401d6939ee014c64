// Copies through the staging region whose bytes are sent without a request (CopyStaged with an
// immediate), also with a worker that fails or dies.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "client/session/staging.h"
#include "client/session/timeline.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using Answer = test::PuppetServer::Answer;

constexpr CUdeviceptr kDevice = 0x10'0000;
constexpr size_t kBytes = 3 * test::PuppetServer::kStagingBytes + 12345;

class UnaskedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    puppet().link().on_immediate([this](uint32_t immediate, uint64_t bytes) {
      std::lock_guard lock(mutex_);
      arrived_[immediate] += bytes;
      changed_.notify_all();
    });
    for (size_t i = 0; i < kBytes; ++i) here_[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    for (size_t i = 0; i < kBytes; ++i) device_[i] = static_cast<std::byte>(i * 40503u >> 7);
  }
  void TearDown() override { puppet().link().on_immediate(nullptr); }

  Session& session() { return *lone_.session; }
  test::PuppetServer& puppet() { return lone_.puppet; }
  Route in_context() { return session().in_context(wire::primary_context_id(0)); }
  void await(uint32_t immediate, uint64_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_[immediate] == bytes; });
  }
  // Copies between slots and `device_`, as the copy engine of a GPU would.
  void serve_copies() {
    puppet().on(wire::Custom::kCopyStaged, [this](const auto& command) -> std::optional<Answer> {
      const auto body = command.template as<wire::CopyStagedBody>();
      std::byte* const slot = puppet().staging() + body.staging_offset;
      std::byte* const device = device_.data() + (body.device_address - kDevice);
      if (body.to_device) {
        if (body.immediate != 0) await(body.immediate, body.bytes);
        std::memcpy(device, slot, body.bytes);
      } else {
        std::memcpy(slot, device, body.bytes);
        write(body, slot);
      }
      return Answer{};
    });
  }
  void write(const wire::CopyStagedBody& body, const std::byte* slot) {
    EXPECT_NE(body.immediate, 0u);
    puppet().link().write_with_immediate(static_cast<transport::RegionId>(body.region),
                                         body.region_offset, slot, body.bytes, body.immediate,
                                         transport::Company::kAwaited, [](const Status&) {});
  }
  CUresult to_device(Route route) {
    return session().staging().to_device(route, kDevice, here_.data(), kBytes);
  }
  CUresult to_host() {
    return session().staging().to_host(in_context(), back_.data(), kDevice, kBytes);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, uint64_t> arrived_;  // guarded by mutex_
  std::vector<std::byte> here_ = std::vector<std::byte>(kBytes), device_ = here_, back_ = here_;
  LoneSession lone_{"tcp"};
};

TEST_F(UnaskedTest, LargeCopiesGoThroughEverySlotInOrder) {
  serve_copies();
  EXPECT_EQ(to_device(in_context()), CUDA_SUCCESS);
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  EXPECT_EQ(device_, here_);
  EXPECT_FALSE(arrived_.empty());
  EXPECT_EQ(to_host(), CUDA_SUCCESS);
  EXPECT_EQ(back_, here_);
}

// A worker has gates for the streams of one context only. In other contexts, the client fills the
// slot before it sends the command.
TEST_F(UnaskedTest, OtherContextsFillSlotsBeforeTheCommand) {
  serve_copies();
  EXPECT_EQ(to_device(session().in_context(wire::kFirstCreatedContext)), CUDA_SUCCESS);
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  EXPECT_EQ(device_, here_);
  EXPECT_TRUE(arrived_.empty());
}

TEST_F(UnaskedTest, NoBytesComeAfterAnError) {
  puppet().on(wire::Custom::kCopyStaged, [](const auto&) {
    return Answer{CUDA_ERROR_ILLEGAL_ADDRESS, {}};
  });
  EXPECT_EQ(to_host(), CUDA_ERROR_ILLEGAL_ADDRESS);
  serve_copies();
  EXPECT_EQ(to_host(), CUDA_SUCCESS);
  EXPECT_EQ(back_, device_);
}

TEST_F(UnaskedTest, ALostSessionEndsTheWaitForBytes) {
  puppet().on(wire::Custom::kCopyStaged, [this](const auto&) {
    puppet().link().close();
    return Answer{};
  });
  EXPECT_EQ(to_host(), kSessionLost);
  EXPECT_EQ(to_device(in_context()), kSessionLost);
}

// In the driver's queue: a wait for the bytes, the copy, and an event.
TEST_F(UnaskedTest, ACopyTakesThreePlacesOfTheQueue) {
  serve_copies();
  const auto timeline = std::make_shared<Timeline>(session(), 1, 0);
  const Route route{&session(), wire::primary_context_id(0), 0, timeline.get()};
  const size_t before = timeline->sent();
  EXPECT_EQ(session().staging().to_device(route, kDevice, here_.data(), 100), CUDA_SUCCESS);
  EXPECT_EQ(timeline->sent() - before, 3u);
  std::vector<std::byte> back(100);
  EXPECT_EQ(session().staging().to_host(route, back.data(), kDevice, 100), CUDA_SUCCESS);
  EXPECT_EQ(timeline->sent() - before, 5u);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), here_.begin()));
}

}  // namespace
}  // namespace rcuda::client
