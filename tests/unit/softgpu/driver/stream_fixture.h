// Shared by the tests of streams, events, launches and graphs: a context for each test, a module of
// small kernels, pinned words that device and host both see, and shorthands.
//
// The tests use only the driver API and also run against NVIDIA's driver, except for those marked
// "softgpu only". Kernels:
//   empty()            set(p, v): *p = v            add(p, v): *p += v, atomically, by every thread
//   shift(p, v): *p = *p * 31 + v, so that the result shows the order of several
//   copy(d, s): *d = *s      spin(p): until *p is not 0      illegal(), trapping(): fault
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <cuda.h>
#include <gtest/gtest.h>

namespace softgpu::driver {

#define CUDA_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

extern const char* const kTestPtx;

class StreamFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    CUDA_OK(cuInit(0));
    CUDA_OK(cuDeviceGet(&device_, 0));
    CUDA_OK(cuCtxCreate_v2(&context_, 0, device_));
    CUDA_OK(cuModuleLoadData(&module_, kTestPtx));
    empty_ = function("empty");
    set_ = function("set");
    add_ = function("add");
    shift_ = function("shift");
    copy_ = function("copy");
    spin_ = function("spin");
    CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&words_), kWords * sizeof(uint32_t), 0));
    for (int i = 0; i < kWords; ++i) words_[i] = 0;
  }
  void TearDown() override {
    for (std::thread& thread : threads_) thread.join();
    if (context_ != nullptr) {
      EXPECT_EQ(cuCtxDestroy_v2(context_), CUDA_SUCCESS);
    }
  }

  CUfunction function(const char* name) {
    CUfunction found = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&found, module_, name), CUDA_SUCCESS) << name;
    return found;
  }
  CUstream stream(unsigned flags = CU_STREAM_DEFAULT) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUevent event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }

  // Pinned words; the device uses the same addresses.
  CUdeviceptr word(int i) const { return reinterpret_cast<CUdeviceptr>(words_ + i); }
  uint32_t read(int i) const { return std::atomic_ref(words_[i]).load(); }
  void write(int i, uint32_t value) { std::atomic_ref(words_[i]).store(value); }

  CUresult launch(CUfunction function, CUstream stream, std::vector<void*> parameters) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr);
  }
  CUresult empty(CUstream stream) { return launch(empty_, stream, {}); }
  CUresult set(CUstream stream, CUdeviceptr at, uint32_t value) {
    return launch(set_, stream, {&at, &value});
  }
  CUresult add(CUstream stream, CUdeviceptr at, uint32_t value) {
    return launch(add_, stream, {&at, &value});
  }
  CUresult shift(CUstream stream, CUdeviceptr at, uint32_t value) {
    return launch(shift_, stream, {&at, &value});
  }
  CUresult copy(CUstream stream, CUdeviceptr to, CUdeviceptr from) {
    return launch(copy_, stream, {&to, &from});
  }
  CUresult spin(CUstream stream, CUdeviceptr until_set) {
    return launch(spin_, stream, {&until_set});
  }

  // A thread with the fixture's context current; joined at the end of the test.
  template <typename Work>
  void in_thread(Work work) {
    threads_.emplace_back([this, work] {
      EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      work();
    });
  }
  void join_threads() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  static constexpr int kWords = 1024;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction empty_ = nullptr, set_ = nullptr, add_ = nullptr, shift_ = nullptr, copy_ = nullptr,
             spin_ = nullptr;
  uint32_t* words_ = nullptr;
  std::vector<std::thread> threads_;
};

// The result of shift() on `before` with each of the values in turn.
inline uint32_t shifted(uint32_t before, std::initializer_list<uint32_t> values) {
  for (const uint32_t value : values) before = before * 31 + value;
  return before;
}

}  // namespace softgpu::driver
