// Streams that share queues, in a process with its own settings: two queues.
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
  std::array<CUstream, 3> streams_{};
  std::atomic<bool> open_{false};
};

TEST_F(ConnectionsTest, WorkWaitsForWhatItsQueueWasGivenBefore) {
  shut_gate(streams_[0]);
  shut_gate(streams_[1]);
  fill(streams_[2]);
  EXPECT_EQ(cuStreamQuery(streams_[2]), CUDA_ERROR_NOT_READY);
  open_ = true;
  CUDA_OK(cuStreamSynchronize(streams_[2]));
}

TEST_F(ConnectionsTest, AStreamWithNothingToDoTakesAQueueThatIsEmpty) {
  shut_gate(streams_[1]);
  for (int i = 0; i < 5; ++i) {
    for (CUstream stream : {streams_[0], streams_[2]}) {
      fill(stream);
      CUDA_OK(cuStreamSynchronize(stream));
    }
  }
  EXPECT_EQ(cuStreamQuery(streams_[1]), CUDA_ERROR_NOT_READY);
}

TEST_F(ConnectionsTest, AStreamWithWorkUnderWayStaysInItsQueue) {
  shut_gate(streams_[0]);
  for (int i = 0; i < 3; ++i) fill(streams_[0]);
  fill(streams_[1]);
  CUDA_OK(cuStreamSynchronize(streams_[1]));
}

TEST_F(ConnectionsTest, PrioritiesAndContextsShareTheDevicesQueues) {
  CUcontext other = nullptr;
  CUstream urgent = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  CUDA_OK(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, -5));
  CUDA_OK(cuCtxSetCurrent(context_));
  shut_gate(streams_[0]);
  shut_gate(streams_[1]);
  CUDA_OK(cuCtxSetCurrent(other));
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 64));
  CUDA_OK(cuMemsetD8Async(memory, 1, 64, urgent));
  EXPECT_EQ(cuStreamQuery(urgent), CUDA_ERROR_NOT_READY);
  open_ = true;
  CUDA_OK(cuStreamSynchronize(urgent));
  CUDA_OK(cuCtxDestroy_v2(other));
  CUDA_OK(cuCtxSetCurrent(context_));
}

TEST_F(ConnectionsTest, WorkDoesNotWaitForWhatItsQueueIsGivenLater) {
  for (int i = 0; i < 2; ++i) {
    fill(streams_[2]);
    shut_gate(streams_[i]);
  }
  CUDA_OK(cuStreamSynchronize(streams_[2]));
  EXPECT_EQ(cuStreamQuery(streams_[0]), CUDA_ERROR_NOT_READY);
}

TEST_F(ConnectionsTest, AStreamThatIsDestroyedLeavesItsPlaceInTheQueue) {
  for (int i = 0; i < 2; ++i) {
    shut_gate(streams_[i]);
    fill(streams_[i]);
    CUDA_OK(cuStreamDestroy_v2(streams_[i]));
  }
  fill(streams_[2]);
  EXPECT_EQ(cuStreamQuery(streams_[2]), CUDA_ERROR_NOT_READY);
  open_ = true;
  CUDA_OK(cuStreamSynchronize(streams_[2]));
}

}  // namespace
}  // namespace softgpu::driver
