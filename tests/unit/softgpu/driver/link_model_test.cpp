// The link model through the driver API, in a process with its own settings. A byte takes 0.1 ms
// over any link, so an "endless" copy of 32 MiB takes most of an hour. Only the end of the process
// ends it, so every test runs in its own process (CMakeLists.txt).
//
// No clock is needed to show that two copies overlap: one finishes while an endless copy has begun
// and is not done. Times are only bounded from below, which is all that the model promises.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <ostream>
#include <string>

#include <cuda.h>
#include <gtest/gtest.h>

namespace softgpu::driver {
namespace {

#define CUDA_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

constexpr size_t kEndlessBytes = size_t{32} << 20;
constexpr size_t kShortBytes = 40;
constexpr float kShortMs = 4;
constexpr float kLatencyMs = 2;  // of the host link

enum class Way { kHostToDevice, kDeviceToHost, kPeerOut, kPeerIn };
constexpr Way kWays[] = {Way::kHostToDevice, Way::kDeviceToHost, Way::kPeerOut, Way::kPeerIn};
// One range for each way, and one for a copy that has to wait for another copy of the same way.
constexpr size_t kAllBytes = std::size(kWays) * kEndlessBytes + kShortBytes;
std::ostream& operator<<(std::ostream& out, Way way) {
  constexpr const char* kNames[] = {"host to device", "device to host", "0 to 1", "1 to 0"};
  return out << kNames[static_cast<int>(way)];
}

class LinkModelTest : public testing::TestWithParam<Way> {
 protected:
  static void SetUpTestSuite() {
    ::setenv("SOFTGPU_DEVICES", "2", 1);
    ::setenv("SOFTGPU_PCIE_GBPS", "0.00001", 1);
    ::setenv("SOFTGPU_PCIE_LATENCY_US", "2000", 1);
    ::setenv("SOFTGPU_PEER_GBPS", "0.00001", 1);
    CUDA_OK(cuInit(0));
  }
  void SetUp() override {
    for (int d = 0; d < 2; ++d) {
      CUDA_OK(cuCtxCreate_v2(&contexts_[d], 0, d));
      CUDA_OK(cuMemAlloc_v2(&memory_[d], kAllBytes));
      for (const Way way : kWays) {
        CUDA_OK(cuMemsetD8_v2(memory_[d] + begin_of(way) + kEndlessBytes - 1, 0, 1));
      }
      CUDA_OK(cuCtxSynchronize());
    }
    CUDA_OK(cuCtxSetCurrent(contexts_[0]));
    CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&host_), kAllBytes, CU_MEMHOSTALLOC_PORTABLE));
  }
  // Each way has its own memory, so that no two copies race.
  static size_t begin_of(Way way) { return static_cast<size_t>(way) * kEndlessBytes; }
  CUdeviceptr source(Way way) const {
    const CUdeviceptr memory = way == Way::kHostToDevice ? reinterpret_cast<CUdeviceptr>(host_)
                               : way == Way::kPeerIn     ? memory_[1]
                                                         : memory_[0];
    return memory + begin_of(way);
  }
  CUdeviceptr destination(Way way) const {
    const CUdeviceptr memory = way == Way::kDeviceToHost ? reinterpret_cast<CUdeviceptr>(host_)
                               : way == Way::kPeerOut    ? memory_[1]
                                                         : memory_[0];
    return memory + begin_of(way);
  }
  struct Begun {
    CUevent begin = nullptr, end = nullptr;
  };
  // Copies in a new stream.
  Begun copy(Way way, size_t bytes, size_t offset = 0) {
    CUstream stream = nullptr;
    Begun begun;
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuEventCreate(&begun.begin, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    EXPECT_EQ(cuEventCreate(&begun.end, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(begun.begin, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyAsync(destination(way) + offset, source(way) + offset, bytes, stream),
              CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(begun.end, stream), CUDA_SUCCESS);
    return begun;
  }
  // Returns when the copy occupies its engine: the bytes move before the time passes.
  CUevent begin_endless_copy(Way way) {
    const uint8_t mark = 0x5a;
    const size_t last = kEndlessBytes - 1;
    EXPECT_EQ(cuMemcpy(source(way) + last, reinterpret_cast<CUdeviceptr>(&mark), 1), CUDA_SUCCESS);
    const Begun begun = copy(way, kEndlessBytes);
    uint8_t seen = 0;
    while (seen != mark) {
      EXPECT_EQ(cuMemcpy(reinterpret_cast<CUdeviceptr>(&seen), destination(way) + last, 1),
                CUDA_SUCCESS);
    }
    return begun.end;
  }

  CUcontext contexts_[2] = {};
  CUdeviceptr memory_[2] = {};
  uint8_t* host_ = nullptr;
};

TEST_P(LinkModelTest, OtherWaysAreFreeMeanwhile) {
  const CUevent endless = begin_endless_copy(GetParam());
  const size_t behind_all = kAllBytes - kShortBytes - begin_of(GetParam());
  const CUevent queued = copy(GetParam(), kShortBytes, behind_all).end;
  for (const Way way : kWays) {
    if (way == GetParam()) continue;
    SCOPED_TRACE(way);
    CUDA_OK(cuEventSynchronize(copy(way, kShortBytes).end));
  }
  EXPECT_EQ(cuEventQuery(endless), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(queued), CUDA_ERROR_NOT_READY);
}

TEST_P(LinkModelTest, KernelsRunMeanwhile) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUDA_OK(cuModuleLoadData(
      &module, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }"));
  CUDA_OK(cuModuleGetFunction(&kernel, module, "empty"));
  const CUevent endless = begin_endless_copy(GetParam());
  CUDA_OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  CUDA_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(cuEventQuery(endless), CUDA_ERROR_NOT_READY);
}

TEST_P(LinkModelTest, CopiesTakeWhatTheLinkNeeds) {
  const Begun begun = copy(GetParam(), kShortBytes);
  CUDA_OK(cuEventSynchronize(begun.end));
  float elapsed_ms = 0;
  CUDA_OK(cuEventElapsedTime_v2(&elapsed_ms, begun.begin, begun.end));
  const bool over_host_link = GetParam() == Way::kHostToDevice || GetParam() == Way::kDeviceToHost;
  EXPECT_GE(elapsed_ms, 0.99f * (kShortMs + (over_host_link ? kLatencyMs : 0)));
}

std::string name_of(const testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"HostToDevice", "DeviceToHost", "PeerOut", "PeerIn"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Ways, LinkModelTest, testing::ValuesIn(kWays), name_of);

}  // namespace
}  // namespace softgpu::driver
