#include "server/worker/compute_share.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

int served = 0;

CUresult CUDAAPI attribute(int* value, CUdevice_attribute which, CUdevice) {
  if (which != CU_DEVICE_ATTRIBUTE_MPS_ENABLED) return CUDA_ERROR_INVALID_VALUE;
  *value = served;
  return CUDA_SUCCESS;
}

CUresult state = CUDA_SUCCESS;

CUresult CUDAAPI set_current(CUcontext) { return CUDA_SUCCESS; }
CUresult CUDAAPI synchronize() { return state; }

class ComputeShareTest : public ::testing::Test {
 protected:
  ComputeShareTest() {
    driver_.cuDeviceGetAttribute = &attribute;
    driver_.cuCtxSetCurrent = &set_current;
    driver_.cuCtxSynchronize = &synchronize;
  }
  ~ComputeShareTest() override { ::unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); }
  Status check(uint32_t percent) { return check_share(driver_, {{0, nullptr}}, percent); }

  api::DriverTable driver_;
};

TEST_F(ComputeShareTest, IsAVariableOfTheWorkersEnvironment) {
  EXPECT_EQ(share_environment(25),
            std::vector<std::string>{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"});
  EXPECT_TRUE(share_environment(0).empty());
}

TEST_F(ComputeShareTest, HoldsOnlyAProcessThatWasStartedForItAndIsServed) {
  served = 1;
  EXPECT_TRUE(check(0).ok());
  EXPECT_FALSE(check(25).ok()) << "no variable";
  ::setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25", 1);
  EXPECT_TRUE(check(25).ok());
  EXPECT_FALSE(check(50).ok()) << "another share";
  served = 0;
  const Status refused = check(25);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.context().find("nvidia-cuda-mps-control"), std::string::npos);
}

TEST_F(ComputeShareTest, AnotherClientOfMpsMayHaveEndedAnIdleWorkersContexts) {
  const std::vector<SessionDevice> devices = {{0, nullptr}};
  state = CUDA_SUCCESS;
  served = 1;
  EXPECT_TRUE(check_contexts(driver_, devices).ok());
  state = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_FALSE(check_contexts(driver_, devices).ok());
  served = 0;
  EXPECT_TRUE(check_contexts(driver_, devices).ok()) << "asked only with MPS";
}

}  // namespace
}  // namespace rcuda::server
