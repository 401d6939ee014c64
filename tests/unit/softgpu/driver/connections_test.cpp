// Streams that share queues, in a process of its own settings: two queues for each priority.
#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include <cuda.h>
#include <gtest/gtest.h>

namespace softgpu::driver {
namespace {

#define CUDA_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

class ConnectionsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("SOFTGPU_CONNECTIONS", "2", 1);
    CUDA_OK(cuInit(0));
  }
  void SetUp() override {
    CUDA_OK(cuCtxCreate_v2(&context_, 0, 0));
    CUDA_OK(cuMemAlloc_v2(&memory_, 64));
    for (CUstream& stream : streams_) CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuStreamCreateWithPriority(&urgent_, CU_STREAM_NON_BLOCKING, -1));
  }
  void TearDown() override {
    open_ = true;
    CUDA_OK(cuCtxDestroy_v2(context_));
  }
  void shut_gate(CUstream stream) {
    CUDA_OK(cuLaunchHostFunc(
        stream,
        [](void* open) {
          while (!*static_cast<std::atomic<bool>*>(open)) std::this_thread::yield();
        },
        &open_));
  }
  void fill(CUstream stream) { CUDA_OK(cuMemsetD8Async(memory_, 1, 64, stream)); }

  CUcontext context_ = nullptr;
  CUdeviceptr memory_ = 0;
  std::array<CUstream, 3> streams_{};  // the first and the third share a queue
  CUstream urgent_ = nullptr;
  std::atomic<bool> open_{false};
};

TEST_F(ConnectionsTest, WorkWaitsForWhatItsQueueWasGivenBefore) {
  shut_gate(streams_[0]);
  for (CUstream stream : streams_) fill(stream);
  fill(urgent_);
  CUDA_OK(cuStreamSynchronize(streams_[1]));
  CUDA_OK(cuStreamSynchronize(urgent_));
  EXPECT_EQ(cuStreamQuery(streams_[0]), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(streams_[2]), CUDA_ERROR_NOT_READY);
  open_ = true;
  CUDA_OK(cuStreamSynchronize(streams_[2]));
  EXPECT_EQ(cuStreamQuery(streams_[0]), CUDA_SUCCESS);
}

TEST_F(ConnectionsTest, WorkDoesNotWaitForWhatItsQueueIsGivenLater) {
  fill(streams_[0]);
  fill(streams_[2]);
  shut_gate(streams_[0]);
  CUDA_OK(cuStreamSynchronize(streams_[2]));
  EXPECT_EQ(cuStreamQuery(streams_[0]), CUDA_ERROR_NOT_READY);
}

TEST_F(ConnectionsTest, AStreamThatIsDestroyedLeavesItsPlaceInTheQueue) {
  shut_gate(streams_[0]);
  fill(streams_[0]);
  CUDA_OK(cuStreamDestroy_v2(streams_[0]));
  fill(streams_[2]);
  EXPECT_EQ(cuStreamQuery(streams_[2]), CUDA_ERROR_NOT_READY);
  open_ = true;
  CUDA_OK(cuStreamSynchronize(streams_[2]));
}

}  // namespace
}  // namespace softgpu::driver
