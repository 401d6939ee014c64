// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync. Results of invalid calls are those of driver 580 on
// an H200.
#include <algorithm>
#include <cstring>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class BatchTest : public CoreTest {
 protected:
  void SetUp() override {
    CoreTest::SetUp();
    CUDA_OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), kBytes, 0));
    for (size_t i = 0; i < 3; ++i) {
      to_[i] = allocate(kBytes);
      CUDA_OK(cuMemsetD8_v2(to_[i], 0, kBytes));
    }
    CUDA_OK(cuCtxSynchronize());
  }
  void TearDown() override {
    EXPECT_EQ(cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(pinned_), CUDA_SUCCESS);
    CoreTest::TearDown();
  }
  static CUdeviceptr address_of(const void* pointer) {
    return reinterpret_cast<CUdeviceptr>(pointer);
  }
  CUresult copy(std::vector<CUdeviceptr> from, std::vector<CUmemcpySrcAccessOrder> orders,
                std::vector<size_t> indices, CUstream stream) {
    std::vector<size_t> bytes(from.size(), kBytes);
    std::vector<CUmemcpyAttributes> attributes(orders.size());
    for (size_t i = 0; i < orders.size(); ++i) attributes[i].srcAccessOrder = orders[i];
    return cuMemcpyBatchAsync_v2(to_, from.data(), bytes.data(), from.size(), attributes.data(),
                                 indices.data(), indices.size(), stream);
  }
  // Holds the stream until pinned_[0] is 1.
  CUresult hold() {
    pinned_[0] = 0;
    return cuStreamWaitValue32_v2(stream_, address_of(pinned_), 1, CU_STREAM_WAIT_VALUE_EQ);
  }
  void let_go() { __atomic_store_n(reinterpret_cast<uint32_t*>(pinned_), 1, __ATOMIC_RELEASE); }

  static constexpr size_t kBytes = 3000;
  static constexpr auto kStream = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  static constexpr auto kDuringCall = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  static constexpr auto kAny = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  CUstream stream_ = nullptr;
  uint8_t* pinned_ = nullptr;
  CUdeviceptr to_[3] = {};
};

TEST_F(BatchTest, CopiesInEveryDirection) {
  const std::vector<uint8_t> data = noise(kBytes), other = noise(kBytes, 2);
  std::memcpy(pinned_, other.data(), kBytes);
  const CUdeviceptr device = allocate(kBytes);
  write(device, data);
  CUDA_OK(copy({device, address_of(pinned_), address_of(data.data())}, {kStream, kAny}, {0, 2},
               stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(read(to_[0], kBytes), data);
  EXPECT_EQ(read(to_[1], kBytes), other);
  EXPECT_EQ(read(to_[2], kBytes), data);
  CUdeviceptr back = address_of(pinned_);
  size_t bytes = kBytes, index = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = kStream;
  CUDA_OK(cuMemcpyBatchAsync_v2(&back, to_, &bytes, 1, &attributes, &index, 1, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(std::memcmp(pinned_, data.data(), kBytes), 0);
}

TEST_F(BatchTest, SourcesAreReadWhenTheirOrderSays) {
  uint8_t* in_stream_order = nullptr;
  CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&in_stream_order), kBytes, 0));
  std::fill_n(in_stream_order, kBytes, uint8_t{1});
  std::vector<uint8_t> during_the_call(kBytes, 1);
  CUDA_OK(hold());
  CUDA_OK(copy({address_of(in_stream_order), address_of(during_the_call.data())},
               {kStream, kDuringCall}, {0, 1}, stream_));
  std::fill_n(in_stream_order, kBytes, uint8_t{2});
  std::fill(during_the_call.begin(), during_the_call.end(), uint8_t{2});
  let_go();
  CUDA_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(read(to_[0], kBytes), std::vector<uint8_t>(kBytes, 2));
  EXPECT_EQ(read(to_[1], kBytes), std::vector<uint8_t>(kBytes, 1));
  CUDA_OK(cuMemFreeHost(in_stream_order));
}

TEST_F(BatchTest, AreChecked) {
  const std::vector<uint8_t> data = noise(kBytes);
  const CUdeviceptr from = address_of(data.data());
  using Orders = std::vector<CUmemcpySrcAccessOrder>;
  const auto invalid = [&](std::vector<CUdeviceptr> sources, const Orders& orders,
                           const std::vector<size_t>& indices) {
    EXPECT_EQ(copy(std::move(sources), orders, indices, stream_), CUDA_ERROR_INVALID_VALUE);
  };
  invalid({}, {kStream}, {0});
  invalid({from, from}, {}, {});
  invalid({from, from}, {kStream}, {1});
  invalid({from, from}, {kStream, kStream}, {0, 0});
  invalid({from, from}, {kStream, kStream}, {0, 2});
  invalid({from}, {kStream, kStream}, {0, 1});
  invalid({from, from}, {kStream, static_cast<CUmemcpySrcAccessOrder>(0)}, {0, 1});
  invalid({from, from}, {static_cast<CUmemcpySrcAccessOrder>(9)}, {0});
  invalid({from, 0}, {kStream}, {0});
  EXPECT_EQ(copy({from}, {kStream}, {0}, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy({from}, {kStream}, {0}, CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(copy({from}, {kStream}, {0}, CU_STREAM_PER_THREAD));
  CUDA_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(read(to_[0], kBytes), data);
}

TEST_F(BatchTest, CannotBeCaptured) {
  CUgraph graph = nullptr;
  CUDA_OK(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(copy({address_of(pinned_)}, {kStream}, {0}, stream_),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  cuStreamEndCapture(stream_, &graph);
}

TEST_F(BatchTest, BoxesCountInElements) {
  CUDA_ARRAY_DESCRIPTOR descriptor{};
  descriptor.Width = 16;
  descriptor.Height = 4;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 1;
  CUarray array = nullptr;
  CUDA_OK(cuArrayCreate_v2(&array, &descriptor));
  const std::vector<uint8_t> data = noise(16 * 4 * 4);
  std::vector<uint8_t> back(8 * 2 * 4);
  CUDA_MEMCPY3D_BATCH_OP in{}, out{};
  in.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  in.src.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(data.data());
  in.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  in.dst.op.array.array = array;
  in.extent = {16, 4, 1};
  in.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CUDA_OK(cuMemcpy3DBatchAsync_v2(1, &in, 0, stream_));
  out.src = in.dst;
  out.src.op.array.offset = {8, 2, 0};
  out.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  out.dst.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(back.data());
  out.extent = {8, 2, 1};
  out.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CUDA_OK(cuMemcpy3DBatchAsync_v2(1, &out, 0, stream_));
  CUDA_OK(cuStreamSynchronize(stream_));
  for (size_t y = 0; y < 2; ++y) {
    EXPECT_EQ(std::memcmp(&back[y * 32], &data[(y + 2) * 64 + 32], 32), 0) << y;
  }
  out.extent.width = 9;
  EXPECT_EQ(cuMemcpy3DBatchAsync_v2(1, &out, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  out.extent.width = 0;
  EXPECT_EQ(cuMemcpy3DBatchAsync_v2(1, &out, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuArrayDestroy(array));
}

}  // namespace
}  // namespace softgpu::driver
