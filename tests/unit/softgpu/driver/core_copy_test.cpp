#include <cstring>
#include <thread>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class CopyTest : public CoreTest {};

TEST_F(CopyTest, MovesBytesInEveryDirection) {
  const std::vector<uint8_t> data = noise(100'003);
  const CUdeviceptr a = allocate(data.size()), b = allocate(data.size());
  write(a, data);
  CUDA_OK(cuMemcpyDtoD_v2(b, a, data.size()));
  EXPECT_EQ(read(b, data.size()), data);
  std::vector<uint8_t> host(data.size());
  CUDA_OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(host.data()), b, host.size()));
  EXPECT_EQ(host, data);
  const std::vector<uint8_t> other = noise(1000, 2);
  CUDA_OK(cuMemcpy(a + 77, reinterpret_cast<CUdeviceptr>(other.data()), other.size()));
  EXPECT_EQ(read(a + 77, other.size()), other);
  std::vector<uint8_t> second(other.size());
  CUDA_OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(second.data()),
                   reinterpret_cast<CUdeviceptr>(other.data()), other.size()));
  EXPECT_EQ(second, other);
}

TEST_F(CopyTest, SmallPageableSourcesMayBeReusedAtOnce) {
  const CUdeviceptr to = allocate(64 * 1024);
  std::vector<uint8_t> source(1000, 1);
  CUDA_OK(cuMemcpyHtoDAsync_v2(to, source.data(), source.size(), nullptr));
  std::fill(source.begin(), source.end(), uint8_t{2});
  CUDA_OK(cuMemcpyHtoDAsync_v2(to + 1000, source.data(), source.size(), nullptr));
  std::fill(source.begin(), source.end(), uint8_t{3});
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(to, 1000), std::vector<uint8_t>(1000, 1));
  EXPECT_EQ(read(to + 1000, 1000), std::vector<uint8_t>(1000, 2));
}

TEST_F(CopyTest, CopiesToPageableMemoryAreDoneWhenTheCallReturns) {
  const std::vector<uint8_t> data = noise(300'000);
  const CUdeviceptr from = allocate(data.size());
  write(from, data);
  std::vector<uint8_t> host(data.size());
  CUDA_OK(cuMemcpyDtoHAsync_v2(host.data(), from, host.size(), nullptr));
  EXPECT_EQ(host, data);
}

TEST_F(CopyTest, ValidatesRanges) {
  const CUdeviceptr address = allocate(1000);
  std::vector<uint8_t> host(2000);
  EXPECT_EQ(cuMemcpyHtoD_v2(address, host.data(), 1001), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH_v2(host.data(), address + 999, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH_v2(nullptr, address, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(0, host.data(), 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(address, host.data(), ~size_t{0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoD_v2(address, 16, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(address, host.data(), 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD_v2(address + 999, host.data(), 1), CUDA_SUCCESS);
}

// Reference for copies of plain arrays: rows of `width` bytes, `height` of them, `depth` times.
struct Box {
  size_t x, y, z, pitch, rows;
  size_t offset(size_t dx, size_t dy, size_t dz) const {
    return ((z + dz) * rows + y + dy) * pitch + x + dx;
  }
};

void copy_reference(std::vector<uint8_t>* to, const Box& to_box, const std::vector<uint8_t>& from,
                    const Box& from_box, size_t width, size_t height, size_t depth) {
  for (size_t dz = 0; dz < depth; ++dz) {
    for (size_t dy = 0; dy < height; ++dy) {
      for (size_t dx = 0; dx < width; ++dx) {
        (*to)[to_box.offset(dx, dy, dz)] = from[from_box.offset(dx, dy, dz)];
      }
    }
  }
}

TEST_F(CopyTest, BoxesOfEveryShapeMatchTheReference) {
  std::mt19937 random(11);
  auto below = [&](size_t limit) { return random() % limit; };
  constexpr size_t kBytes = 200'000;
  const CUdeviceptr device_a = allocate(kBytes), device_b = allocate(kBytes);
  for (int round = 0; round < 150; ++round) {
    const size_t width = 1 + below(40), height = 1 + below(9), depth = 1 + below(5);
    auto box = [&] {
      Box b{};
      b.x = below(20);
      b.y = below(4);
      b.z = below(3);
      b.pitch = b.x + width + below(30);
      b.rows = b.y + height + below(4);
      return b;
    };
    const Box from_box = box(), to_box = box();
    const std::vector<uint8_t> from = noise(kBytes, random());
    std::vector<uint8_t> to = noise(kBytes, random());
    std::vector<uint8_t> expected = to, result(kBytes);
    copy_reference(&expected, to_box, from, from_box, width, height, depth);

    CUDA_MEMCPY3D copy{};
    copy.srcXInBytes = from_box.x;
    copy.srcY = from_box.y;
    copy.srcZ = from_box.z;
    copy.srcPitch = from_box.pitch;
    copy.srcHeight = from_box.rows;
    copy.dstXInBytes = to_box.x;
    copy.dstY = to_box.y;
    copy.dstZ = to_box.z;
    copy.dstPitch = to_box.pitch;
    copy.dstHeight = to_box.rows;
    copy.WidthInBytes = width;
    copy.Height = height;
    copy.Depth = depth;
    const bool from_device = below(2), to_device = below(2), unified = below(2);
    if (from_device) write(device_a, from);
    if (to_device) write(device_b, to);
    copy.srcMemoryType = unified       ? CU_MEMORYTYPE_UNIFIED
                         : from_device ? CU_MEMORYTYPE_DEVICE
                                       : CU_MEMORYTYPE_HOST;
    copy.dstMemoryType = unified     ? CU_MEMORYTYPE_UNIFIED
                         : to_device ? CU_MEMORYTYPE_DEVICE
                                     : CU_MEMORYTYPE_HOST;
    copy.srcHost = from.data();
    copy.srcDevice = from_device ? device_a : reinterpret_cast<CUdeviceptr>(from.data());
    copy.dstHost = to.data();
    copy.dstDevice = to_device ? device_b : reinterpret_cast<CUdeviceptr>(to.data());
    if (below(2)) {
      CUDA_OK(cuMemcpy3D_v2(&copy));
    } else {
      CUDA_OK(cuMemcpy3DAsync_v2(&copy, nullptr));
      CUDA_OK(cuCtxSynchronize());
    }
    result = to_device ? read(device_b, kBytes) : to;
    ASSERT_TRUE(result == expected) << "round " << round;
  }
}

TEST_F(CopyTest, RowsOfPitchedMemory) {
  const std::vector<uint8_t> data = noise(100 * 50);
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CUDA_OK(cuMemAllocPitch_v2(&address, &pitch, 100, 50, 4));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.srcPitch = 100;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = address;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 100;
  copy.Height = 50;
  CUDA_OK(cuMemcpy2D_v2(&copy));
  for (size_t y = 0; y < 50; ++y) {
    const std::vector<uint8_t> row(data.begin() + static_cast<long>(100 * y),
                                   data.begin() + static_cast<long>(100 * y + 100));
    ASSERT_EQ(read(address + y * pitch, 100), row);
  }
  copy.srcPitch = 99;
  EXPECT_EQ(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
  copy.srcPitch = 100;
  copy.Height = 51;
  EXPECT_EQ(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
  copy.Height = 50;
  copy.srcMemoryType = static_cast<CUmemorytype>(9);
  EXPECT_EQ(cuMemcpy2DUnaligned_v2(&copy), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CopyTest, ArraysKeepTheirContents) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = 13;
  descriptor.Height = 5;
  descriptor.Depth = 3;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 2;
  CUarray array = nullptr;
  CUDA_OK(cuArray3DCreate_v2(&array, &descriptor));
  const size_t row = 13 * 8;
  const std::vector<uint8_t> data = noise(row * 5 * 3);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.srcPitch = row;
  copy.srcHeight = 5;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = row;
  copy.Height = 5;
  copy.Depth = 3;
  CUDA_OK(cuMemcpy3D_v2(&copy));
  std::vector<uint8_t> part(8);
  CUDA_MEMCPY3D back{};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = array;
  back.srcXInBytes = 3 * 8;
  back.srcY = 4;
  back.srcZ = 2;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = part.data();
  back.WidthInBytes = 8;
  back.Height = back.Depth = 1;
  CUDA_OK(cuMemcpy3D_v2(&back));
  EXPECT_EQ(std::memcmp(part.data(), data.data() + (2 * 5 + 4) * row + 3 * 8, 8), 0);
  back.srcZ = 3;
  EXPECT_EQ(cuMemcpy3D_v2(&back), CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY3D_DESCRIPTOR found{};
  EXPECT_EQ(cuArray3DGetDescriptor_v2(&found, array), CUDA_SUCCESS);
  EXPECT_EQ(found.Width, 13u);
  CUDA_OK(cuArrayDestroy(array));
  EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemcpy3D_v2(&copy), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(free_bytes(), kDeviceBytes);

  CUDA_ARRAY_DESCRIPTOR flat{};
  flat.Width = 100;
  flat.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  flat.NumChannels = 1;
  CUDA_OK(cuArrayCreate_v2(&array, &flat));
  const std::vector<uint8_t> line = noise(100);
  CUDA_OK(cuMemcpyHtoA_v2(array, 0, line.data(), 100));
  std::vector<uint8_t> half(50);
  CUDA_OK(cuMemcpyAtoH_v2(half.data(), array, 50, 50));
  EXPECT_TRUE(std::equal(half.begin(), half.end(), line.begin() + 50));
  const CUdeviceptr device = allocate(100);
  CUDA_OK(cuMemcpyAtoD_v2(device, array, 0, 100));
  EXPECT_EQ(read(device, 100), line);
  CUDA_OK(cuMemcpyDtoA_v2(array, 10, device, 20));
  EXPECT_EQ(cuMemcpyHtoA_v2(array, 90, line.data(), 11), CUDA_ERROR_INVALID_VALUE);
  flat.NumChannels = 3;
  EXPECT_EQ(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CopyTest, DestroyingAnArrayWaitsForItsCopies) {
  CUDA_ARRAY_DESCRIPTOR line{};
  line.Width = 1024;
  line.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  line.NumChannels = 1;
  const std::vector<uint8_t> data = noise(1024);
  const CUdeviceptr from = allocate(1024), to = allocate(1024);
  write(from, data);
  for (int i = 0; i < 20; ++i) {
    CUarray array = nullptr;
    CUDA_OK(cuArrayCreate_v2(&array, &line));
    CUDA_OK(cuMemcpyDtoA_v2(array, 0, from, 1024));
    CUDA_OK(cuMemcpyAtoD_v2(to, array, 0, 1024));
    CUDA_OK(cuArrayDestroy(array));
    ASSERT_EQ(read(to, 1024), data);
    CUDA_OK(cuMemsetD8_v2(to, 0, 1024));
  }
}

TEST_F(CopyTest, FillsOfEveryWidth) {
  const CUdeviceptr address = allocate(4096);
  CUDA_OK(cuMemsetD8_v2(address, 0xee, 4096));
  CUDA_OK(cuMemsetD8_v2(address + 1, 0x11, 3));
  CUDA_OK(cuMemsetD16_v2(address + 16, 0x2233, 5));
  CUDA_OK(cuMemsetD32_v2(address + 64, 0x44556677, 6));
  CUDA_OK(cuMemsetD2D8_v2(address + 512, 64, 0x88, 10, 3));
  CUDA_OK(cuMemsetD2D16_v2(address + 1024, 64, 0x99aa, 4, 2));
  CUDA_OK(cuMemsetD2D32Async(address + 2048, 128, 0xbbccddee, 7, 4, nullptr));
  std::vector<uint8_t> expected(4096, 0xee);
  std::fill_n(expected.begin() + 1, 3, uint8_t{0x11});
  for (int i = 0; i < 5; ++i) {
    expected[static_cast<size_t>(16 + 2 * i)] = 0x33;
    expected[static_cast<size_t>(17 + 2 * i)] = 0x22;
  }
  auto word = [&](size_t at, uint32_t value) { std::memcpy(&expected[at], &value, 4); };
  auto half = [&](size_t at, uint16_t value) { std::memcpy(&expected[at], &value, 2); };
  for (size_t i = 0; i < 6; ++i) word(64 + 4 * i, 0x44556677);
  for (size_t y = 0; y < 3; ++y) {
    std::fill_n(expected.begin() + static_cast<long>(512 + 64 * y), 10, uint8_t{0x88});
  }
  for (size_t y = 0; y < 2; ++y) {
    for (size_t x = 0; x < 4; ++x) half(1024 + 64 * y + 2 * x, 0x99aa);
  }
  for (size_t y = 0; y < 4; ++y) {
    for (size_t x = 0; x < 7; ++x) word(2048 + 128 * y + 4 * x, 0xbbccddee);
  }
  EXPECT_EQ(read(address, 4096), expected);
  EXPECT_EQ(cuMemsetD32_v2(address + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8_v2(address, 0, 4097), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD2D32_v2(address, 8, 0, 4, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8_v2(address, 0, 0), CUDA_SUCCESS);
}

TEST_F(CopyTest, PeerCopiesNeedNoAccess) {
  CUcontext peer = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&peer, 1));
  const std::vector<uint8_t> data = noise(70'001);
  const CUdeviceptr here = allocate(data.size());
  write(here, data);
  CUDA_OK(cuCtxPushCurrent_v2(peer));
  const CUdeviceptr there = allocate(data.size());
  CUDA_OK(cuMemcpyPeer(there, peer, here, context_, data.size()));
  EXPECT_EQ(read(there, data.size()), data);
  CUDA_OK(cuMemsetD8_v2(there, 0, data.size()));
  CUDA_OK(cuMemcpyPeerAsync(there + 1, peer, here, context_, 1000, nullptr));
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(there + 1, 1000), std::vector<uint8_t>(data.begin(), data.begin() + 1000));
  CUDA_OK(cuMemcpyDtoD_v2(there, here, data.size()));
  EXPECT_EQ(read(there, data.size()), data);
  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = here;
  box.srcContext = context_;
  box.srcPitch = box.dstPitch = 100;
  box.dstDevice = there;
  box.dstContext = peer;
  box.dstXInBytes = 50;
  box.WidthInBytes = 50;
  box.Height = 10;
  box.Depth = 1;
  CUDA_OK(cuMemcpy3DPeer(&box));
  EXPECT_EQ(read(there + 950, 50), std::vector<uint8_t>(data.begin() + 900, data.begin() + 950));
  EXPECT_EQ(cuMemcpyPeer(there, peer, here, nullptr, 16), CUDA_SUCCESS);  // the current context
  CUDA_OK(cuCtxPopCurrent_v2(nullptr));
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(1));
}

// The calls of these copies do not name the devices. Still, whichever context is current, a copy
// between two devices runs after the earlier work and before the later work of both devices'
// default streams.
TEST_F(CopyTest, CopiesBetweenDevicesHaveTheirPlaceInBothDefaultStreams) {
  constexpr size_t kBytes = size_t{8} << 20;
  constexpr int kFills = 20;
  CUcontext peer = nullptr, third = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&peer, 1));
  CUDA_OK(cuCtxCreate_v2(&third, 0, 0));
  CUDA_OK(cuCtxSetCurrent(context_));
  const CUdeviceptr here = allocate(kBytes);
  CUDA_OK(cuCtxSetCurrent(peer));
  const CUdeviceptr there = allocate(kBytes);
  const auto fill = [&](CUcontext context, CUdeviceptr memory, uint8_t last) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int before = kFills; before-- > 0;) {
      const auto value = static_cast<uint8_t>(last + before);
      ASSERT_EQ(cuMemsetD8Async(memory, value, kBytes, nullptr), CUDA_SUCCESS);
    }
  };
  CUresult (*const copies[])(CUdeviceptr, CUdeviceptr) = {
      [](CUdeviceptr to, CUdeviceptr from) { return cuMemcpy(to, from, kBytes); },
      [](CUdeviceptr to, CUdeviceptr from) { return cuMemcpyDtoD_v2(to, from, kBytes); },
      [](CUdeviceptr to, CUdeviceptr from) {
        CUDA_MEMCPY2D rows{};
        rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        rows.srcDevice = from;
        rows.dstDevice = to;
        rows.srcPitch = rows.dstPitch = rows.WidthInBytes = 4096;
        rows.Height = kBytes / 4096;
        return cuMemcpy2D_v2(&rows);
      }};
  uint8_t round = 0;
  for (const auto copy : copies) {
    for (const CUcontext current : {context_, peer, third}) {
      ++round;
      fill(peer, there, round);
      fill(context_, here, 100);  // the copy overwrites it
      CUDA_OK(cuCtxSetCurrent(current));
      CUDA_OK(copy(here, there));
      fill(peer, there, 200);  // too late to be copied
      CUDA_OK(cuCtxSetCurrent(context_));
      EXPECT_TRUE(read(here, kBytes) == std::vector<uint8_t>(kBytes, round)) << int{round};
    }
  }
  CUDA_OK(cuCtxSetCurrent(context_));
  CUDA_OK(cuCtxDestroy_v2(third));
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(1));
}

// A free waits for the work of its own context; a copy may belong to another context.
TEST_F(CopyTest, MemoryStaysForTheCopiesOfOtherContexts) {
  constexpr size_t kBytes = 1 << 20;
  CUcontext peer = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&peer, 1));
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  uint32_t* go = nullptr;
  CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&go), 4, 0));
  const std::vector<uint8_t> data = noise(kBytes);
  const CUdeviceptr here = allocate(kBytes);
  CUDA_OK(cuCtxPushCurrent_v2(peer));
  const CUdeviceptr there = allocate(kBytes);
  write(there, data);
  CUDA_OK(cuCtxPopCurrent_v2(nullptr));
  *go = 0;
  CUDA_OK(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(go), 1,
                                 CU_STREAM_WAIT_VALUE_EQ));
  CUDA_OK(cuMemcpyPeerAsync(here, context_, there, peer, kBytes, stream));
  std::thread frees([&] {
    EXPECT_EQ(cuCtxSetCurrent(peer), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(there), CUDA_SUCCESS);
  });
  __atomic_store_n(go, 1, __ATOMIC_RELEASE);
  CUDA_OK(cuStreamSynchronize(stream));
  frees.join();
  EXPECT_EQ(read(here, kBytes), data);
  CUDA_OK(cuMemFreeHost(go));
  CUDA_OK(cuStreamDestroy_v2(stream));
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(1));
}

// An access to freed memory is an error of the context and does not crash the process.
TEST_F(CopyTest, CopiesAndFillsOfGraphsNoticeFreedMemory) {
  for (const bool fill : {false, true}) {
    CUcontext context = nullptr;
    CUDA_OK(cuCtxCreate_v2(&context, 0, 0));
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr from = allocate(4096), to = allocate(4096);
    CUDA_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (fill) {
      CUDA_OK(cuMemsetD8Async(to, 1, 4096, stream));
    } else {
      CUDA_OK(cuMemcpyDtoDAsync_v2(to, from, 4096, stream));
    }
    CUDA_OK(cuStreamEndCapture(stream, &graph));
    CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA_OK(cuGraphLaunch(exec, stream));
    CUDA_OK(cuStreamSynchronize(stream));
    CUDA_OK(cuMemFree_v2(to));
    CUDA_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    cuCtxDestroy_v2(context);
  }
}

TEST_F(CopyTest, AsynchronousFormsOfEveryShape) {
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const std::vector<uint8_t> data = noise(4096);
  void* pinned = nullptr;
  CUDA_OK(cuMemHostAlloc(&pinned, 4096, 0));
  std::memcpy(pinned, data.data(), 4096);
  const auto host = reinterpret_cast<CUdeviceptr>(pinned);
  const CUdeviceptr device = allocate(4096);
  CUDA_OK(cuMemcpyAsync(device, host, 4096, stream));
  CUDA_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read(device, 4096), data);

  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = device;
  rows.srcPitch = 64;
  rows.dstDevice = device + 2048;
  rows.dstPitch = 32;
  rows.WidthInBytes = 16;
  rows.Height = 8;
  CUDA_OK(cuMemcpy2DAsync_v2(&rows, stream));
  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = device;
  box.dstDevice = device + 3072;
  box.srcContext = box.dstContext = context_;
  box.srcPitch = box.dstPitch = 100;
  box.WidthInBytes = 100;
  box.Height = 2;
  box.Depth = 1;
  CUDA_OK(cuMemcpy3DPeerAsync(&box, stream));
  CUDA_OK(cuMemsetD16Async(device + 1024, 0x1122, 4, stream));
  CUDA_OK(cuMemsetD2D8Async(device + 1100, 10, 0x33, 5, 2, stream));
  CUDA_OK(cuMemsetD2D16Async(device + 1200, 16, 0x4455, 2, 2, stream));
  CUDA_OK(cuStreamSynchronize(stream));
  std::vector<uint8_t> expected = data;
  for (size_t y = 0; y < 8; ++y) std::memcpy(&expected[2048 + 32 * y], &data[64 * y], 16);
  std::memcpy(&expected[3072], data.data(), 200);
  for (size_t i = 0; i < 8; ++i) expected[1024 + i] = i % 2 == 0 ? 0x22 : 0x11;
  for (const size_t at : {1100, 1110}) std::memset(&expected[at], 0x33, 5);
  for (const size_t at : {1200, 1202, 1216, 1218}) {
    expected[at] = 0x55;
    expected[at + 1] = 0x44;
  }
  EXPECT_EQ(read(device, 4096), expected);

  CUDA_ARRAY_DESCRIPTOR line{};
  line.Width = 256;
  line.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  line.NumChannels = 1;
  CUarray a = nullptr, b = nullptr;
  CUDA_OK(cuArrayCreate_v2(&a, &line));
  CUDA_OK(cuArrayCreate_v2(&b, &line));
  CUDA_OK(cuMemcpyHtoAAsync_v2(a, 0, pinned, 256, stream));
  CUDA_OK(cuStreamSynchronize(stream));
  CUDA_OK(cuMemcpyAtoA_v2(b, 56, a, 0, 200));
  CUDA_OK(cuCtxSynchronize());  // between device memories the host does not wait
  std::memset(pinned, 0, 256);
  CUDA_OK(cuMemcpyAtoHAsync_v2(pinned, b, 56, 200, stream));
  CUDA_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(pinned, data.data(), 200), 0);
  CUDA_ARRAY_DESCRIPTOR told{};
  CUDA_OK(cuArrayGetDescriptor_v2(&told, b));
  EXPECT_EQ(told.Width, 256u);
  EXPECT_EQ(told.Height, 0u);
  CUDA_OK(cuArrayDestroy(a));
  CUDA_OK(cuArrayDestroy(b));
  CUDA_OK(cuMemFreeHost(pinned));
  CUDA_OK(cuStreamDestroy_v2(stream));
}

}  // namespace
}  // namespace softgpu::driver
