// A session over TCP whose client has page-locked memory, of which the worker has a shadow; and
// device memory of the same size.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/counted_host_functions.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {

// Calls `first` before the worker unregisters page-locked memory from the driver. Make it before
// the session.
class BeforeUnregister {
 public:
  BeforeUnregister() {
    unregister_ = test::TestDriver::get().table.cuMemHostUnregister;
    test::TestDriver::get().table.cuMemHostUnregister = [](void* memory) {
      if (first) first(memory);
      return unregister_(memory);
    };
  }
  ~BeforeUnregister() {
    first = nullptr;
    test::TestDriver::get().table.cuMemHostUnregister = unregister_;
  }
  BeforeUnregister(const BeforeUnregister&) = delete;
  BeforeUnregister& operator=(const BeforeUnregister&) = delete;

  static inline std::function<void(void*)> first;

 private:
  static inline decltype(api::DriverTable::cuMemHostUnregister) unregister_;
};

class ShadowSession : public ::testing::Test {
 protected:
  explicit ShadowSession(size_t bytes)
      : here_(bytes),
        shadow_memory_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)), &std::free) {}

  void SetUp() override {
    CUdevice device;
    CUcontext context;
    ASSERT_EQ(driver().cuDeviceGet(&device, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuMemAlloc_v2(&device_, here_.size()), CUDA_SUCCESS);
    auto region = client().link().expose(here_.data(), here_.size());
    ASSERT_TRUE(region.ok());
    region_ = region->id;
    wire::HostExposeBody body{};
    body.address = reinterpret_cast<uint64_t>(shadow_);
    body.bytes = here_.size();
    body.region = static_cast<uint64_t>(region_);
    const auto exposed = client().call(wire::Custom::kHostExpose, body);
    ASSERT_EQ(exposed->result, CUDA_SUCCESS);
    shadow_region_ =
        static_cast<transport::RegionId>(wire::Decoder(exposed->body).value<uint64_t>());
  }
  void TearDown() override {
    EXPECT_TRUE(is_over_ || session_.end().ok());
    driver().cuMemFree_v2(device_);
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }
  test::ProtocolClient& client() { return session_.client(); }
  const api::DriverTable& driver() { return session_.driver(); }

  // Waits for the legacy stream.
  CUresult synchronize() {
    EXPECT_TRUE(
        client().post(wire::Custom::kSignal, wire::SignalBody{0, kWord, ++sequence_}).ok());
    return client().wait_word(kWord, sequence_).value_or(CUDA_ERROR_UNKNOWN);
  }

  static constexpr uint32_t kWord = 9;
  bool is_over_ = false;  // the test has ended the session
  uint64_t sequence_ = 0;
  CUdeviceptr device_ = 0;
  transport::RegionId region_{};
  transport::RegionId shadow_region_{};  // of the worker
  std::vector<std::byte> here_;  // the client's memory
  // A worker in the client's process makes no shadow, but uses the memory that is already at the
  // address. Until the worker's Link ends, it may store arriving bytes there.
  const std::unique_ptr<std::byte, decltype(&std::free)> shadow_memory_;
  std::byte* const shadow_ = shadow_memory_.get();
  test::CountedHostFunctions host_functions_;
  BeforeUnregister before_unregister_;
  test::SessionHarness session_{{.medium = &test::medium_named("tcp")}};
};

}  // namespace rcuda::server
