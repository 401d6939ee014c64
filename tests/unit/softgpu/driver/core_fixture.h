// Shared by the tests of devices, contexts, modules and memory: two devices of 256 MiB each (set by
// core_main.cpp), of which the first one's primary context is current, and shorthands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <cuda.h>
#include <gtest/gtest.h>

namespace softgpu::driver {

#define CUDA_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

inline constexpr size_t kDeviceBytes = size_t{256} << 20;

class CoreTest : public testing::Test {
 protected:
  void SetUp() override {
    CUDA_OK(cuInit(0));
    CUDA_OK(cuDevicePrimaryCtxRetain(&context_, 0));
    CUDA_OK(cuCtxSetCurrent(context_));
  }
  void TearDown() override {
    CUcontext current = nullptr;
    while (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) cuCtxPopCurrent_v2(&current);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    // After any test, no context may stay active on the device.
    int active = 1;
    unsigned flags = 0;
    EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
    EXPECT_EQ(active, 0);
  }

  static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  static size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  }
  static std::vector<uint8_t> noise(size_t bytes, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::vector<uint8_t> data(bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    return data;
  }
  static std::vector<uint8_t> read(CUdeviceptr address, size_t bytes) {
    std::vector<uint8_t> data(bytes);
    EXPECT_EQ(cuMemcpyDtoH_v2(data.data(), address, bytes), CUDA_SUCCESS);
    return data;
  }
  static void write(CUdeviceptr address, const std::vector<uint8_t>& data) {
    EXPECT_EQ(cuMemcpyHtoD_v2(address, data.data(), data.size()), CUDA_SUCCESS);
  }

  CUcontext context_ = nullptr;
};

}  // namespace softgpu::driver
