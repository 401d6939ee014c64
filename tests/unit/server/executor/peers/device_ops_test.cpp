// The GPU operations of the peer-to-peer engine (DeviceOps), on softgpu.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "p2p/staging/lanes.h"
#include "server/executor/peers/cuda_device_ops.h"
#include "tests/fuzz/memory_link.h"
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
    auto ops = CudaDeviceOps::create(driver(), {{{0, context_}}, {}, std::move(on_change)});
    ASSERT_TRUE(ops.ok()) << ops.status().message();
    ops_ = *std::move(ops);
  }
  p2p::StreamPlace hold() {
    const auto place = ops_->enter(CudaDeviceOps::stream_ref(stream_, context_), true);
    EXPECT_TRUE(place.ok()) << place.status().message();
    return place.ok() ? *place : p2p::StreamPlace::kNone;
  }
  static const api::DriverTable& driver() { return test::TestDriver::get().table; }

  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::unique_ptr<CudaDeviceOps> ops_;
};

// The driver frees memory only when the device is idle. A held stream would never become idle,
// because it waits for the thread that frees.
TEST_F(DeviceOpsTest, APauseBeginsWhenNoStreamIsHeldAndThenNoneIs) {
  make();
  const p2p::StreamPlace one = hold();
  const p2p::StreamPlace other = hold();
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  ops_->release(one, {});
  EXPECT_FALSE(ops_->pause(Pause::kWork));
  ops_->release(other, {});
  ASSERT_TRUE(ops_->pause(Pause::kHolds));

  // Another thread's stream is held only after the pause; until then no call of the driver blocks
  // on it.
  std::atomic<bool> asked = false;
  p2p::StreamPlace late = p2p::StreamPlace::kNone;
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
  const p2p::StreamPlace place = hold();
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  EXPECT_FALSE(ops_->pause(Pause::kHolds));
  EXPECT_EQ(changes, 1);  // notified once
  EXPECT_TRUE(ops_->wants(Pause::kHolds));
  EXPECT_FALSE(ops_->wants(Pause::kWork));
  EXPECT_FALSE(ops_->begin_pause(Pause::kHolds));  // not while a stream is held
  ops_->release(place, {});
  EXPECT_EQ(changes, 2);
  EXPECT_FALSE(ops_->pause(Pause::kHolds));  // a pause must be granted
  EXPECT_TRUE(ops_->begin_pause(Pause::kHolds));
  EXPECT_FALSE(ops_->wants(Pause::kHolds));
  EXPECT_EQ(ops_->paused(), Pause::kHolds);
  EXPECT_TRUE(ops_->pause(Pause::kHolds));
  EXPECT_FALSE(ops_->pause(Pause::kWork));  // stronger than the pause in progress
  EXPECT_TRUE(ops_->wants(Pause::kWork));
  EXPECT_FALSE(ops_->begin_pause(Pause::kWork));  // one at a time
  ops_->resume();
  EXPECT_EQ(ops_->paused(), Pause::kNone);
  const int before = changes;
  EXPECT_TRUE(ops_->begin_pause(Pause::kWork));
  EXPECT_TRUE(ops_->pause(Pause::kHolds));  // weaker than the pause in progress
  EXPECT_TRUE(ops_->pause(Pause::kWork));
  ops_->resume();
  EXPECT_EQ(changes, before + 1);
}

// A pause may begin in the middle of the engine's round, or when it is no longer needed.
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

// The executor thread destroys a context, and all its events, while the engine's thread queries a
// place in one of its streams.
TEST_F(DeviceOpsTest, NoEventIsQueriedOnceItsContextIsForgotten) {
  static std::atomic<bool> asks, forgotten;
  static const api::DriverTable& real = driver();
  api::DriverTable table = real;
  table.cuEventQuery = [](CUevent event) {
    asks = true;
    for (int i = 0; i < 20 && !forgotten; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(forgotten);
    return real.cuEventQuery(event);
  };
  auto ops = CudaDeviceOps::create(table, {.devices = {{0, context_}}, .on_error = {}});
  ASSERT_TRUE(ops.ok()) << ops.status().message();
  const auto place = (*ops)->enter(CudaDeviceOps::stream_ref(nullptr, context_), false);
  ASSERT_TRUE(place.ok()) << place.status().message();
  asks = forgotten = false;
  std::thread forgets([&] {
    while (!asks) std::this_thread::yield();
    (*ops)->forget_context(context_);
    forgotten = true;
  });
  EXPECT_TRUE((*ops)->reached(*place).ok());
  forgets.join();
  const auto after = (*ops)->reached(*place);
  EXPECT_TRUE(after.ok() && *after);
  (*ops)->release(*place, {});
}

TEST_F(DeviceOpsTest, ACopyThatIsRefusedHalfwayEndsWithWhatWasIssued) {
  make();
  CUdeviceptr from = 0, to = 0;
  ASSERT_EQ(driver().cuMemAlloc_v2(&from, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuMemAlloc_v2(&to, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuMemsetD8_v2(from, 0x5a, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuMemsetD8_v2(to, 0, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuCtxSynchronize(), CUDA_SUCCESS);
  p2p::CopyBox whole, wrong;
  whole.source = wrong.source = from;
  whole.destination = wrong.destination = to;
  whole.width_bytes = kBytes;
  wrong.width_bytes = 64;
  wrong.rows = 2;
  wrong.source_pitch = wrong.destination_pitch = 16;  // shorter than a row
  const p2p::CopyBox boxes[] = {whole, wrong};
  p2p::Lanes lanes(*ops_);
  const auto ticket = lanes.copy(0, p2p::Lane::kLocal, boxes, kBytes);
  ASSERT_TRUE(ticket) << ticket.status().message();
  EXPECT_TRUE(lanes.busy());
  Result<bool> finished = false;
  do {
    lanes.refresh();
    finished = lanes.finished(0, p2p::Lane::kLocal, *ticket);
  } while (finished && !*finished);
  EXPECT_EQ(finished.status().cuda(), CUDA_ERROR_INVALID_VALUE);
  std::vector<unsigned char> bytes(kBytes);
  ASSERT_EQ(driver().cuMemcpyDtoH_v2(bytes.data(), to, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 0x5a));
  driver().cuMemFree_v2(from);
  driver().cuMemFree_v2(to);
}

// A peer may be a hostile client in the place of a worker. This worker maps only memory that a
// worker of the same owner has exported.
TEST_F(DeviceOpsTest, PeersGetNamesOfMemoryAndOpenNothingElse) {
  ExportedNames names;
  auto ops = CudaDeviceOps::create(driver(), {{{0, context_}}, {}, {}, &names});
  ASSERT_TRUE(ops.ok()) << ops.status().message();
  const Result<p2p::DeviceAddress> memory = (*ops)->allocate(0, 4096);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  auto exported = (*ops)->export_memory(0, *memory + 8);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  EXPECT_EQ(exported->offset, 8u);
  // The name was translated to the driver's handle: the driver answers that this process already
  // has the memory.
  EXPECT_EQ((*ops)->open(0, *exported).status().cuda(), CUDA_ERROR_INVALID_CONTEXT);

  CUipcMemHandle raw{};
  ASSERT_EQ(driver().cuIpcGetMemHandle(&raw, *memory), CUDA_SUCCESS);
  p2p::ExportedMemory forged;
  std::memcpy(forged.handle.data(), &raw, sizeof raw);
  EXPECT_EQ((*ops)->open(0, forged).status().code(), Code::kNotFound);
  exported->handle[40] ^= std::byte{1};
  EXPECT_EQ((*ops)->open(0, *exported).status().code(), Code::kNotFound);
  (*ops)->free(0, *memory);
}

// A Link whose adapter reaches all memory, or loses the bytes of one transfer to itself.
class AdapterLink : public fuzz::MemoryLink {
 public:
  explicit AdapterLink(int lost) : MemoryLink({}, {}), lost_(lost) {}
  std::string adapter() const override { return "adapter " + std::to_string(lost_); }
  Result<transport::Region> expose_device(void*, size_t bytes,
                                          const transport::DeviceMemory&) override {
    ++exposed;
    return transport::Region{transport::RegionId{1}, bytes};
  }
  Status unexpose(transport::RegionId) override {
    --exposed;
    return {};
  }
  Status loop_back(void* to, const void* from, size_t bytes) override {
    if (++transfers != lost_) std::memcpy(to, from, bytes);
    return {};
  }

  int exposed = 0;
  int transfers = 0;

 private:
  const int lost_;
};

TEST_F(DeviceOpsTest, GpudirectIsProvenByBytesThatArriveBothWays) {
  make();
  for (const int lost : {0, 1, 2}) {
    AdapterLink link(lost);
    EXPECT_EQ(ops_->prove_gpudirect(0, link), lost == 0) << lost;
    EXPECT_EQ(link.exposed, 0);
    // The next connection over an adapter that has passed needs no further test.
    EXPECT_GT(std::exchange(link.transfers, 0), 0);
    EXPECT_EQ(ops_->prove_gpudirect(0, link), lost == 0) << lost;
    EXPECT_EQ(link.transfers == 0, lost == 0) << lost;
  }
}

TEST_F(DeviceOpsTest, MemoryIsRegisteredOnlyInTheWayThatIsProven) {
  make();
  EXPECT_EQ(ops_->dma_buf(0, 4096, 4096).status().code(), Code::kUnsupported);
  AdapterLink link(0);
  ASSERT_TRUE(ops_->prove_gpudirect(0, link));
  const auto dma_buf = ops_->dma_buf(0, 4096, 4096);  // softgpu exports none
  ASSERT_TRUE(dma_buf.ok());
  EXPECT_FALSE(dma_buf->has_value());
}

}  // namespace
}  // namespace rcuda::server
