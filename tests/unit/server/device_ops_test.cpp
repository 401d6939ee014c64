// What the peer-to-peer engine asks of a GPU, on softgpu.
#include <gtest/gtest.h>

#include "server/peer/cuda_device_ops.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

constexpr size_t kBytes = 8u << 20;

// The driver frees memory when the device is idle, and a held stream waits for the thread that
// frees.
TEST(CudaDeviceOps, FreesMemoryWhenNoStreamIsHeld) {
  const api::DriverTable& driver = test::TestDriver::get().table;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const auto free_bytes = [&] {
    size_t free = 0, total = 0;
    EXPECT_EQ(driver.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  };
  {
    const auto ops = CudaDeviceOps::create(driver, {{0, context}}, {});
    ASSERT_TRUE(ops.ok()) << ops.status().message();
    const size_t at_first = free_bytes();
    const auto early = (*ops)->allocate(0, kBytes);
    const auto late = (*ops)->allocate(0, kBytes);
    ASSERT_TRUE(early.ok() && late.ok());
    const size_t allocated = free_bytes();
    const auto one = (*ops)->enter(CudaDeviceOps::stream_ref(stream, context), true);
    const auto other = (*ops)->enter(CudaDeviceOps::stream_ref(stream, context), true);
    ASSERT_TRUE(one.ok() && other.ok());
    (*ops)->free(0, *early);
    (*ops)->release(*one, {});
    EXPECT_EQ(free_bytes(), allocated);
    (*ops)->release(*other, {});
    EXPECT_GT(free_bytes(), allocated);
    (*ops)->free(0, *late);
    EXPECT_EQ(free_bytes(), at_first);
  }
  driver.cuStreamDestroy_v2(stream);
  driver.cuDevicePrimaryCtxRelease_v2(0);
}

}  // namespace
}  // namespace rcuda::server
