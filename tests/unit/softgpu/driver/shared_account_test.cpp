// Devices whose memory several processes share (shared_account.h), through the driver API.
#include <cstdlib>
#include <string>

#include <cuda.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace softgpu::driver {
namespace {

constexpr size_t kMib = 1u << 20;

size_t free_bytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  return free;
}

CUresult allocate(size_t mib, CUdeviceptr* address) { return cuMemAlloc_v2(address, mib * kMib); }

// The other process holds 40 MiB of the device's 64 MiB until it is killed.
class SharedAccountTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(::mkdtemp(folder_));
    path_ = std::string(folder_) + "/account";
    ::setenv("SOFTGPU_SHARED_MEMORY", path_.c_str(), 1);
    ::setenv("SOFTGPU_MEMORY", "64M", 1);
    ::setenv("SOFTGPU_DRIVER_VERSION", "13000", 1);
    ASSERT_EQ(::pipe(ready_), 0);
    other_ = ::fork();  // before this process uses the driver
    ASSERT_GE(other_, 0);
    if (other_ == 0) {
      CUdeviceptr address = 0;
      const bool has = make_context() && allocate(40, &address) == CUDA_SUCCESS;
      (void)!::write(ready_[1], has ? "y" : "n", 1);
      for (;;) ::pause();
    }
    char has = 'n';
    ASSERT_EQ(::read(ready_[0], &has, 1), 1);
    ASSERT_EQ(has, 'y');
    ASSERT_TRUE(make_context());
  }
  void TearDown() override {
    kill_other();
    ::unlink(path_.c_str());
    ::rmdir(folder_);
  }
  static bool make_context() {
    CUcontext context = nullptr;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
  }
  void kill_other() {
    if (other_ <= 0) return;
    ::kill(other_, SIGKILL);
    ::waitpid(other_, nullptr, 0);
    other_ = -1;
  }

  char folder_[32] = "/tmp/rcuda-account-XXXXXX";
  std::string path_;
  int ready_[2] = {-1, -1};
  pid_t other_ = -1;
};

TEST_F(SharedAccountTest, CountsOtherProcessesUntilTheyEnd) {
  CUdeviceptr first = 0, second = 0;
  EXPECT_EQ(free_bytes(), 24 * kMib);
  EXPECT_EQ(allocate(25, &first), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocate(24, &first), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), 0u);
  EXPECT_EQ(cuMemFree_v2(first), CUDA_SUCCESS);
  kill_other();
  EXPECT_EQ(free_bytes(), 64 * kMib);
  EXPECT_EQ(allocate(64, &second), CUDA_SUCCESS);
}

TEST_F(SharedAccountTest, ACheckpointedProcessDoesNotCount) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuCheckpointProcessLock(other_, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCheckpointProcessCheckpoint(other_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), 64 * kMib);
  ASSERT_EQ(allocate(30, &address), CUDA_SUCCESS);
  EXPECT_EQ(cuCheckpointProcessRestore(other_, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(cuCheckpointProcessRestore(other_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCheckpointProcessUnlock(other_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), 24 * kMib);
}

}  // namespace
}  // namespace softgpu::driver
