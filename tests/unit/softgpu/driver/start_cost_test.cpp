// The modelled cost of starts (start_cost.h), through the driver API. The tests check only that a
// start takes at least the configured time, because the model promises no more.
#include <chrono>
#include <cstdlib>
#include <thread>

#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace softgpu::driver {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(StartCostTest, ContextsOfAllProcessesAreMadeOneAfterTheOther) {
  ::setenv("SOFTGPU_INIT_MS", "20", 1);
  ::setenv("SOFTGPU_CONTEXT_MS", "60", 1);
  constexpr int kProcesses = 4;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child != 0) continue;
    CUcontext context = nullptr;
    const bool made =
        cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS;
    ::_exit(made ? 0 : 1);
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = -1;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_GE(Clock::now() - begin, milliseconds(20 + kProcesses * 60));
}

TEST(StartCostTest, TheThreadsOfAProcessTakeTurnsToo) {
  ::setenv("SOFTGPU_CONTEXT_MS", "60", 1);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const Clock::time_point begin = Clock::now();
  const auto make = [] {
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  };
  std::thread other(make);
  make();
  other.join();
  EXPECT_GE(Clock::now() - begin, milliseconds(2 * 60));
}

TEST(StartCostTest, AResetEndsAContext) {
  ::setenv("SOFTGPU_CONTEXT_END_MS", "60", 1);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  const Clock::time_point begin = Clock::now();
  ASSERT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  EXPECT_GE(Clock::now() - begin, milliseconds(60));
}

}  // namespace
}  // namespace softgpu::driver
