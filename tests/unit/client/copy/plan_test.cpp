// The plan of a copy: the way it takes, and whether the caller waits.
#include "client/copy/plan.h"

#include <gtest/gtest.h>

#include "generated/client/forward.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class PlanTest : public TwoPuppetsTest {
 protected:
  static constexpr size_t kBytes = 4096;

  void SetUp() override {
    TwoPuppetsTest::SetUp();
    here_ = stream_of(0);
    there_ = stream_of(1);
    device_.emplace(located(allocate(first_session(), 0x10000, kBytes)));
    also_device_.emplace(located(allocate(first_session(), 0x20000, kBytes)));
    host_.emplace(located(reinterpret_cast<uintptr_t>(bytes_)));
  }
  void TearDown() override {
    for (CUstream stream : {here_, there_}) {
      EXPECT_EQ(forward_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    }
    TwoPuppetsTest::TearDown();
  }

  CUstream stream_of(CUdevice device) {
    push_context(process().device(device)->primary);
    CUstream stream = nullptr;
    EXPECT_EQ(forward_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    pop_context();
    return stream;
  }
  static Location located(uint64_t address) {
    Location location;
    EXPECT_EQ(locate(address, kBytes, Side::kAny, &location), CUDA_SUCCESS);
    return location;
  }
  static CopyPlan plan(const Location& destination, const Location& source, CUstream stream,
                       bool synchronous) {
    CopyPlan plan;
    EXPECT_EQ(prepare_copy(destination, source, stream, synchronous, true, &plan), CUDA_SUCCESS);
    return plan;
  }

  std::byte bytes_[kBytes];
  CUstream here_ = nullptr, there_ = nullptr;
  std::optional<Location> device_, also_device_, host_;
};

TEST_F(PlanTest, TheSidesDecideTheWay) {
  EXPECT_EQ(plan(*device_, *also_device_, here_, true).way, CopyWay::kInWorker);
  EXPECT_EQ(plan(*device_, *host_, here_, true).way, CopyWay::kFromPageable);
  EXPECT_EQ(plan(*host_, *device_, here_, true).way, CopyWay::kToPageable);
  EXPECT_EQ(plan(*host_, *host_, here_, true).way, CopyWay::kOnHost);
  const Location other = located(allocate(second_session(), 0x10000, kBytes));
  EXPECT_EQ(plan(*device_, other, here_, true).way, CopyWay::kBetweenServers);
}

TEST_F(PlanTest, NobodyWaitsForACopyWithinADevice) {
  EXPECT_FALSE(plan(*device_, *also_device_, here_, true).waits);
  EXPECT_FALSE(plan(*device_, *also_device_, here_, false).waits);
}

TEST_F(PlanTest, SynchronousCopiesOfMemoryWithSyncMemopsAreWaitedFor) {
  const uint64_t address = allocate(first_session(), 0x30000, kBytes);
  process().memory().update(address, [](Allocation& memory) { memory.sync_memops = true; });
  const Location marked = located(address);
  EXPECT_TRUE(plan(marked, *device_, here_, true).waits);
  EXPECT_TRUE(plan(*device_, marked, here_, true).waits);
  EXPECT_TRUE(plan(marked, *host_, here_, true).waits);
  EXPECT_FALSE(plan(marked, *device_, here_, false).waits);
}

// The copy runs in a stream of the worker that has the memory. Later work in the stream of the call
// must come after the copy, so the call waits for the copy.
TEST_F(PlanTest, ACopyInAnotherServersStreamIsWaitedFor) {
  for (const Location& source : {*also_device_, *host_}) {
    const CopyPlan planned = plan(*device_, source, there_, false);
    EXPECT_EQ(planned.stream->route.session, &first_session());
    EXPECT_TRUE(planned.waits);
  }
  EXPECT_FALSE(plan(*device_, *host_, here_, false).waits);
}

}  // namespace
}  // namespace rcuda::client
