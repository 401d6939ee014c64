#include "server/worker/compute_share.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

constexpr std::chrono::seconds kPatience(60);  // a working test does not reach it
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
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.context().find("nvidia-cuda-mps-control"), std::string::npos);
}

TEST_F(ComputeShareTest, AnotherClientOfMpsMayHaveEndedAnIdleWorkersContexts) {
  const std::vector<SessionDevice> devices = {{0, nullptr}};
  state = CUDA_SUCCESS;
  served = 1;
  EXPECT_TRUE(check_contexts(driver_, devices, kPatience).ok());
  state = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_FALSE(check_contexts(driver_, devices, kPatience).ok());
  served = 0;
  EXPECT_TRUE(check_contexts(driver_, devices, kPatience).ok()) << "asked only with MPS";
}

// Before a session, no end of a session can end the wait, so the wait must have a limit.
TEST_F(ComputeShareTest, AWorkerDoesNotWaitForMpsForEver) {
  static std::atomic<bool> gives_up = false;
  gives_up = false;
  served = 1;
  driver_.cuCtxSynchronize = [] {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!gives_up && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return CUDA_ERROR_MPS_RPC_FAILURE;
  };
  std::string why;
  const Status status = check_contexts(driver_, {{0, nullptr}}, std::chrono::milliseconds(10),
                                       [&](const Status& expired) {
                                         why = expired.context();
                                         gives_up = true;
                                       });
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(gives_up);
  EXPECT_NE(why.find("MPS on the server's machine does not answer"), std::string::npos);
}

}  // namespace
}  // namespace rcuda::server
