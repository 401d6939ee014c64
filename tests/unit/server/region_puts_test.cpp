// Copies into the client's page-locked memory over a medium that shares no pages.
#include "server/executor/memory/region_puts.h"

#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/counted_host_functions.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using wire::Custom;

class RegionPutsTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = RegionPuts::kMostBytes + 4096;

  void SetUp() override {
    CUdevice device;
    CUcontext context;
    ASSERT_EQ(driver().cuDeviceGet(&device, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuMemAlloc_v2(&device_, kBytes), CUDA_SUCCESS);
    // A worker in the client's process makes none, but takes what is there.
    shadow_ = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
    auto region = client().link().expose(here_.data(), here_.size());
    ASSERT_TRUE(region.ok());
    wire::HostExposeBody body{};
    body.address = reinterpret_cast<uint64_t>(shadow_);
    body.bytes = kBytes;
    body.region = static_cast<uint64_t>(region->id);
    ASSERT_EQ(client().call(Custom::kHostExpose, body)->result, CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_TRUE(session_.end().ok());
    driver().cuMemFree_v2(device_);
    std::free(shadow_);
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }
  test::ProtocolClient& client() { return session_.client(); }
  const api::DriverTable& driver() { return session_.driver(); }

  // Copies from the device, waits for the stream, and returns the number of host functions.
  int copy(size_t bytes, int value) {
    EXPECT_EQ(driver().cuMemsetD8_v2(device_, static_cast<unsigned char>(value), kBytes),
              CUDA_SUCCESS);
    const int before = host_functions_.count();
    wire::CopyBody body{};
    body.destination = reinterpret_cast<uint64_t>(shadow_);
    body.source = device_;
    body.bytes = bytes;
    EXPECT_TRUE(client().post(Custom::kCopy, body).ok());
    EXPECT_TRUE(client().post(Custom::kSignal, wire::SignalBody{0, kWord, ++sequence_}).ok());
    EXPECT_EQ(client().wait_word(kWord, sequence_), CUDA_SUCCESS);
    EXPECT_EQ(std::vector<std::byte>(here_.begin(), here_.begin() + static_cast<long>(bytes)),
              std::vector<std::byte>(bytes, static_cast<std::byte>(value)));
    return host_functions_.count() - before;
  }

  static constexpr uint32_t kWord = 9;
  uint64_t sequence_ = 0;
  CUdeviceptr device_ = 0;
  std::byte* shadow_ = nullptr;
  std::vector<std::byte> here_ = std::vector<std::byte>(kBytes);
  test::CountedHostFunctions host_functions_;
  test::SessionHarness session_{{.medium = &test::medium_named("tcp")}};
};

// A host function waits for the client, which the stream does not have to. The first one of a
// region does not wait, but needs one.
TEST_F(RegionPutsTest, BytesOfASmallCopyGoAheadOfWhatTellsOfIt) {
  EXPECT_EQ(copy(RegionPuts::kMostBytes, 1), 1);
  EXPECT_EQ(copy(RegionPuts::kMostBytes, 2), 0);
  EXPECT_EQ(copy(transport::kMaxRegionPut + 1, 3), 0);
  EXPECT_EQ(copy(1, 4), 0);
}

TEST_F(RegionPutsTest, LargerCopiesEndWithAHostFunction) {
  EXPECT_EQ(copy(1, 1), 1);
  EXPECT_EQ(copy(RegionPuts::kMostBytes + 1, 2), 1);
}

}  // namespace
}  // namespace rcuda::server
