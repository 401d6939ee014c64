// What the peer-to-peer engine asks of a GPU, on softgpu.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "server/peer/cuda_device_ops.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

constexpr size_t kBytes = 8u << 20;

using p2p::Pause;

class DeviceOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override {
    ops_.reset();
    driver().cuStreamDestroy_v2(stream_);
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }
  void make(std::function<void()> on_change = {}) {
    auto ops = CudaDeviceOps::create(driver(), {{0, context_}}, {}, std::move(on_change));
    ASSERT_TRUE(ops.ok()) << ops.status().message();
    ops_ = *std::move(ops);
  }
  p2p::Order hold() {
    const auto order = ops_->enter(CudaDeviceOps::stream_ref(stream_, context_), true);
    EXPECT_TRUE(order.ok()) << order.status().message();
    return order.ok() ? *order : p2p::Order::kNone;
  }
  static const api::DriverTable& driver() { return test::TestDriver::get().table; }

  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::unique_ptr<CudaDeviceOps> ops_;
};

// The driver frees memory when the device is idle, and a held stream waits for the thread that
// frees.
TEST_F(DeviceOpsTest, APauseBeginsWhenNoStreamIsHeldAndThenNoneIs) {
  make();
  const p2p::Order one = hold();
  const p2p::Order other = hold();
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  ops_->release(one, {});
  EXPECT_FALSE(ops_->pause(Pause::kWork));
  ops_->release(other, {});
  ASSERT_TRUE(ops_->pause(Pause::kHolds));

  // Another thread's stream is held only afterwards; until then the driver waits for nobody.
  std::atomic<bool> asked = false;
  p2p::Order late = p2p::Order::kNone;
  std::thread enters([&] {
    asked = true;
    late = hold();
  });
  while (!asked) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    const auto memory = ops_->allocate(0, kBytes);
    ASSERT_TRUE(memory.ok());
    ops_->free(0, *memory);
    EXPECT_FALSE(ops_->holding());
  }
  ops_->resume();
  enters.join();
  EXPECT_TRUE(ops_->holding());
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  ops_->release(late, {});
}

TEST_F(DeviceOpsTest, WhoGivesTheStreamsTheirWorkGrantsPauses) {
  int changes = 0;
  make([&] { ++changes; });
  const p2p::Order order = hold();
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  EXPECT_EQ(changes, 1);  // told once
  EXPECT_TRUE(ops_->wants(Pause::kHolds));
  EXPECT_FALSE(ops_->wants(Pause::kWork));
  EXPECT_FALSE(ops_->begin_pause(Pause::kHolds));  // not while a stream is held
  ops_->release(order, {});
  EXPECT_EQ(changes, 2);
  EXPECT_FALSE(ops_->pause(Pause::kHolds));  // not by itself
  EXPECT_TRUE(ops_->begin_pause(Pause::kHolds));
  EXPECT_FALSE(ops_->wants(Pause::kHolds));
  EXPECT_EQ(ops_->paused(), Pause::kHolds);
  EXPECT_TRUE(ops_->pause(Pause::kHolds));
  EXPECT_FALSE(ops_->pause(Pause::kWork));  // which is more
  EXPECT_TRUE(ops_->wants(Pause::kWork));
  EXPECT_FALSE(ops_->begin_pause(Pause::kWork));  // one at a time
  ops_->resume();
  EXPECT_EQ(ops_->paused(), Pause::kNone);
  const int before = changes;
  EXPECT_TRUE(ops_->begin_pause(Pause::kWork));
  EXPECT_TRUE(ops_->pause(Pause::kHolds));  // which is less
  EXPECT_TRUE(ops_->pause(Pause::kWork));
  ops_->resume();
  EXPECT_EQ(changes, before + 1);
}

// It may begin in the middle of the engine's round, or when nobody has a use for it any more.
TEST_F(DeviceOpsTest, AnUnusedPauseEndsAfterAWholeRound) {
  make([] {});
  EXPECT_FALSE(ops_->pause(Pause::kWork));
  EXPECT_TRUE(ops_->begin_pause(Pause::kWork));
  ops_->resume();
  EXPECT_EQ(ops_->paused(), Pause::kWork);
  ops_->resume();
  EXPECT_EQ(ops_->paused(), Pause::kNone);
}

TEST_F(DeviceOpsTest, AtTheEndPausesNeedNoGrant) {
  make([] {});
  EXPECT_FALSE(ops_->pause(Pause::kWork));
  ops_->grant_by_itself();
  EXPECT_TRUE(ops_->pause(Pause::kWork));
  ops_->resume();
}

}  // namespace
}  // namespace rcuda::server
