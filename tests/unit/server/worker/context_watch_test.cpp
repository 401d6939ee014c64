#include <gtest/gtest.h>

#include "server/worker/compute_share.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

int mps = 0;
int streams = 0;
CUresult answer = CUDA_SUCCESS;

CUresult CUDAAPI attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = mps;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI set_current(CUcontext) { return CUDA_SUCCESS; }
CUresult CUDAAPI create(CUstream* stream, unsigned) {
  if (answer == CUDA_SUCCESS) *stream = reinterpret_cast<CUstream>(uintptr_t{16} * ++streams);
  return answer;
}
CUresult CUDAAPI query(CUstream) { return answer; }

class ContextWatchTest : public ::testing::Test {
 protected:
  ContextWatchTest() {
    driver_.cuDeviceGetAttribute = &attribute;
    driver_.cuCtxSetCurrent = &set_current;
    driver_.cuStreamCreate = &create;
    driver_.cuStreamQuery = &query;
    mps = 1;
    streams = 0;
    answer = CUDA_SUCCESS;
  }
  api::DriverTable driver_;
  const std::vector<SessionDevice> devices_ = {{0, reinterpret_cast<CUcontext>(uintptr_t{8})}};
  SessionObjects objects_{driver_, devices_};
};

TEST_F(ContextWatchTest, AsksNothingWithoutMps) {
  mps = 0;
  ContextWatch watch(driver_, devices_, objects_);
  EXPECT_FALSE(watch.watches());
  EXPECT_TRUE(watch.look(kSecond).ok());
  EXPECT_EQ(streams, 0);
}

TEST_F(ContextWatchTest, TheProgramHasASecondToReadItsError) {
  ContextWatch watch(driver_, devices_, objects_);
  EXPECT_TRUE(watch.look(kSecond).ok());
  answer = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_TRUE(watch.look(kSecond + kSecond / 2).ok()) << "not asked yet";
  EXPECT_EQ(watch.due(), 2 * kSecond);
  EXPECT_TRUE(watch.look(2 * kSecond).ok());
  EXPECT_EQ(watch.look(3 * kSecond).code(), Code::kUnavailable);
}

TEST_F(ContextWatchTest, AContextThatTheProgramHasResetIsAskedByANewStream) {
  ContextWatch watch(driver_, devices_, objects_);
  EXPECT_TRUE(watch.look(1 * kSecond).ok());
  EXPECT_TRUE(watch.look(2 * kSecond).ok());
  EXPECT_EQ(streams, 1);
  ++objects_.find_context(wire::primary_context_id(0))->generation;
  EXPECT_TRUE(watch.look(3 * kSecond).ok());
  EXPECT_EQ(streams, 2);
}

}  // namespace
}  // namespace rcuda::server
