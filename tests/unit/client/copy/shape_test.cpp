// The commands that a worker gets for a 2D or 3D copy; the client packs and unpacks host memory.
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "client/copy/copy.h"
#include "client/session/staging.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class CopyShapeTest : public TwoPuppetsTest {
 protected:
  void SetUp() override {
    TwoPuppetsTest::SetUp();
    (void)sent(wire::Custom::kCopyShape);
  }
  void TearDown() override {
    first().on(wire::Custom::kCopyShape, nullptr);
    TwoPuppetsTest::TearDown();
  }
  std::vector<wire::CopyShapeBody> bodies() {
    std::vector<wire::CopyShapeBody> read;
    for (const Command& command : sent(wire::Custom::kCopyShape)) {
      read.push_back(command.as<wire::CopyShapeBody>());
    }
    return read;
  }
  static CUDA_MEMCPY3D_PEER shape(size_t width, size_t height, size_t depth) {
    CUDA_MEMCPY3D_PEER made{};
    made.WidthInBytes = width;
    made.Height = height;
    made.Depth = depth;
    return made;
  }
  static void from_host(CUDA_MEMCPY3D_PEER* made, const void* memory, size_t pitch, size_t height) {
    made->srcMemoryType = CU_MEMORYTYPE_HOST;
    made->srcHost = memory;
    made->srcPitch = pitch;
    made->srcHeight = height;
  }
  static void to_host(CUDA_MEMCPY3D_PEER* made, void* memory, size_t pitch, size_t height) {
    made->dstMemoryType = CU_MEMORYTYPE_HOST;
    made->dstHost = memory;
    made->dstPitch = pitch;
    made->dstHeight = height;
  }
  static void to_device(CUDA_MEMCPY3D_PEER* made, CUdeviceptr memory, size_t pitch, size_t height) {
    made->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    made->dstDevice = memory;
    made->dstPitch = pitch;
    made->dstHeight = height;
  }
  static void from_device(CUDA_MEMCPY3D_PEER* made, CUdeviceptr memory, size_t pitch,
                          size_t height) {
    made->srcMemoryType = CU_MEMORYTYPE_DEVICE;
    made->srcDevice = memory;
    made->srcPitch = pitch;
    made->srcHeight = height;
  }

  // Makes the puppet a worker with one device, whose memory from `base` on is `device_`. The puppet
  // executes copies once `may_copy_` is set.
  void be_a_worker(CUdeviceptr base) {
    first().on(wire::Custom::kCopyShape, [this, base](const auto& command) {
      may_copy_.wait(false);
      const auto body = command.template as<wire::CopyShapeBody>();
      const auto row = [&](const wire::CopyShapeSide& side, bool staged, size_t y, size_t z) {
        const uint64_t at = side.address +
                            ((side.z + z) * side.height + side.y + y) * side.pitch_bytes +
                            side.x_bytes;
        return staged ? first().staging() + at : device_.data() + (at - base);
      };
      for (size_t z = 0; z < body.depth; ++z) {
        for (size_t y = 0; y < body.height; ++y) {
          std::memcpy(row(body.destination, body.destination_staged, y, z),
                      row(body.source, body.source_staged, y, z), body.width_bytes);
        }
      }
      return test::PuppetServer::Answer{};
    });
  }

  void let_copy() {
    may_copy_ = true;
    may_copy_.notify_one();
  }

  std::vector<std::byte> device_;
  std::atomic<bool> may_copy_{true};
};

TEST_F(CopyShapeTest, PitchAndHeightDefaultToTheExtent) {
  const CUdeviceptr base = allocate(first_session(), 0x100000, 1 << 20);
  CUDA_MEMCPY3D_PEER copy = shape(100, 4, 3);
  from_device(&copy, base, 0, 0);
  to_device(&copy, base + 0x10000, 128, 8);
  copy.srcXInBytes = 28;
  copy.srcY = 1;
  ASSERT_EQ(copy_shape(copy, nullptr, true), CUDA_SUCCESS);
  const auto sent = bodies();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].source.pitch_bytes, 128u);
  EXPECT_EQ(sent[0].source.height, 5u);
  EXPECT_EQ(sent[0].destination.pitch_bytes, 128u);
  EXPECT_EQ(sent[0].destination.height, 8u);
  EXPECT_EQ(sent[0].sequence, 0u);  // a copy between two device addresses does not block
}

TEST_F(CopyShapeTest, RefusesAtOnceWhatCannotBe) {
  const CUdeviceptr base = allocate(first_session(), 0x300000, 4096);
  std::array<std::byte, 4096> host{};
  const auto refused = [&](CUDA_MEMCPY3D_PEER copy) {
    return copy_shape(copy, nullptr, true) == CUDA_ERROR_INVALID_VALUE;
  };
  CUDA_MEMCPY3D_PEER copy = shape(64, 4, 1);
  from_host(&copy, host.data(), 64, 4);
  to_device(&copy, base, 64, 4);
  const CUDA_MEMCPY3D_PEER good = copy;
  EXPECT_FALSE(refused(good));
  copy.dstPitch = 63;  // shorter than a row
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.dstXInBytes = 1;  // the row no longer fits the pitch
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.Height = 65;  // exceeds the allocation
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.dstY = 61;
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.Depth = 2;
  copy.srcHeight = 3;  // slices would overlap
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.Height = (size_t{1} << 58) + 1;  // 64 times this wraps around
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.Depth = (size_t{1} << 32) + 1;  // slices of 4 GiB wrap around
  copy.srcHeight = copy.dstHeight = size_t{1} << 26;
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.dstDevice = reinterpret_cast<uintptr_t>(host.data());  // not device memory
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.srcHost = reinterpret_cast<void*>(base);  // not host memory
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.srcMemoryType = static_cast<CUmemorytype>(9);
  EXPECT_TRUE(refused(copy));
  copy = good;
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = reinterpret_cast<CUarray>(host.data());
  EXPECT_EQ(copy_shape(copy, nullptr, true), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bodies().size(), 1u);
}

TEST_F(CopyShapeTest, NothingIsAskedForAnEmptyExtent) {
  for (const auto& [width, height, depth] :
       {std::array<size_t, 3>{0, 1, 1}, {1, 0, 1}, {1, 1, 0}}) {
    EXPECT_EQ(copy_shape(shape(width, height, depth), nullptr, true), CUDA_SUCCESS);
  }
  EXPECT_TRUE(bodies().empty());
}

TEST_F(CopyShapeTest, PageableRowsAreGatheredAndScattered) {
  constexpr size_t kPitch = 96, kRows = 5, kSlices = 3, kWidth = 40, kX = 7, kY = 1;
  const CUdeviceptr base = allocate(first_session(), 0x500000, 64 << 10);
  device_.assign(64 << 10, std::byte{0});
  be_a_worker(base);
  std::vector<std::byte> host(kPitch * kRows * kSlices);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i % 251);
  CUDA_MEMCPY3D_PEER copy = shape(kWidth, 3, kSlices);
  from_host(&copy, host.data(), kPitch, kRows);
  copy.srcXInBytes = kX;
  copy.srcY = kY;
  to_device(&copy, base, 64, 4);
  ASSERT_EQ(copy_shape(copy, nullptr, true), CUDA_SUCCESS);
  settle(first_session());
  for (size_t z = 0; z < kSlices; ++z) {
    for (size_t y = 0; y < 3; ++y) {
      EXPECT_EQ(std::memcmp(device_.data() + (z * 4 + y) * 64,
                            host.data() + (z * kRows + kY + y) * kPitch + kX, kWidth),
                0);
    }
  }
  // And back, into a buffer whose margins must not be touched.
  std::vector<std::byte> back(host.size(), std::byte{0xee});
  CUDA_MEMCPY3D_PEER reverse = shape(kWidth, 3, kSlices);
  from_device(&reverse, base, 64, 4);
  to_host(&reverse, back.data(), kPitch, kRows);
  reverse.dstXInBytes = kX;
  reverse.dstY = kY;
  ASSERT_EQ(copy_shape(reverse, nullptr, true), CUDA_SUCCESS);
  settle(first_session());
  for (size_t i = 0; i < back.size(); ++i) {
    const size_t x = i % kPitch, y = i / kPitch % kRows;
    const bool inside = x >= kX && x < kX + kWidth && y >= kY && y < kY + 3;
    ASSERT_EQ(back[i], inside ? host[i] : std::byte{0xee}) << i;
  }
}

TEST_F(CopyShapeTest, WhatIsLargerThanASlotGoesInPieces) {
  constexpr size_t kWidth = 3000, kRows = 2 * Staging::kSlotBytes / kWidth + 3;
  const CUdeviceptr base = allocate(first_session(), 0x1000000, 16 << 20);
  device_.assign(kWidth * kRows, std::byte{0});
  be_a_worker(base);
  std::vector<std::byte> host(kWidth * kRows);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i % 253);
  CUDA_MEMCPY3D_PEER copy = shape(kWidth, kRows, 1);
  from_host(&copy, host.data(), kWidth, kRows);
  to_device(&copy, base, kWidth, kRows);
  may_copy_ = false;
  const CUresult result = copy_shape(copy, nullptr, true);
  let_copy();
  ASSERT_EQ(result, CUDA_SUCCESS);
  const auto sent = bodies();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].height, Staging::kSlotBytes / kWidth);  // whole rows only
  EXPECT_EQ(sent[1].destination.y, sent[0].height);
  EXPECT_NE(sent[0].word, sent[1].word);  // while one slot is copied, the next one is filled
  EXPECT_EQ(device_, host);
}

TEST_F(CopyShapeTest, AnErrorOfAnEarlierCommandIsReportedWhenAllPiecesAreSent) {
  constexpr size_t kWidth = 3000, kRows = 2 * Staging::kSlotBytes / kWidth + 3;
  const CUdeviceptr base = allocate(first_session(), 0x2000000, 16 << 20);
  device_.assign(kWidth * kRows, std::byte{0});
  be_a_worker(base);
  std::vector<std::byte> host(kWidth * kRows, std::byte{0x5a});
  CUDA_MEMCPY3D_PEER copy = shape(kWidth, kRows, 1);
  from_host(&copy, host.data(), kWidth, kRows);
  to_device(&copy, base, kWidth, kRows);
  first().set_error(CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy_shape(copy, nullptr, true), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bodies().size(), 3u);
  EXPECT_EQ(device_, host);
}

TEST_F(CopyShapeTest, ARowLargerThanASlotGoesInPieces) {
  constexpr size_t kWidth = Staging::kSlotBytes + 100;
  const CUdeviceptr base = allocate(first_session(), 0x3000000, 16 << 20);
  device_.assign(2 * kWidth, std::byte{0});
  be_a_worker(base);
  std::vector<std::byte> host(2 * kWidth);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i % 249);
  CUDA_MEMCPY3D_PEER copy = shape(kWidth, 2, 1);
  from_host(&copy, host.data(), kWidth, 2);
  to_device(&copy, base, kWidth, 2);
  ASSERT_EQ(copy_shape(copy, nullptr, true), CUDA_SUCCESS);
  EXPECT_EQ(bodies().size(), 4u);
  EXPECT_EQ(device_, host);
}

TEST_F(CopyShapeTest, BetweenServersEachGetsItsHalf) {
  const CUdeviceptr here = allocate(first_session(), 0x6000000, 1 << 16);
  const CUdeviceptr there = allocate(second_session(), 0x6000000, 1 << 16);
  (void)sent(wire::Custom::kPeerCopy);
  (void)sent_to_second(wire::Custom::kPeerCopy);
  CUDA_MEMCPY3D_PEER copy = shape(100, 7, 2);
  from_device(&copy, here, 128, 16);
  copy.srcXInBytes = 4;
  to_device(&copy, there, 256, 8);
  ASSERT_EQ(copy_shape(copy, nullptr, true), CUDA_SUCCESS);
  const auto out = sent(wire::Custom::kPeerCopy), in = sent_to_second(wire::Custom::kPeerCopy);
  ASSERT_EQ(out.size(), 1u);
  ASSERT_EQ(in.size(), 1u);
  const auto source = out[0].as<wire::PeerCopyBody>(), destination = in[0].as<wire::PeerCopyBody>();
  EXPECT_EQ(source.id, destination.id);
  EXPECT_TRUE(source.flags & wire::kPeerOutgoing);
  EXPECT_FALSE(destination.flags & wire::kPeerOutgoing);
  EXPECT_EQ(source.address, here + 4);
  EXPECT_EQ(source.pitch_bytes, 128u);
  EXPECT_EQ(source.slice_bytes, 128u * 16);
  EXPECT_EQ(destination.address, there);
  EXPECT_EQ(destination.slice_bytes, 256u * 8);
  for (const auto& half : {source, destination}) {
    EXPECT_EQ(half.width_bytes, 100u);
    EXPECT_EQ(half.height, 7u);
    EXPECT_EQ(half.depth, 2u);
  }
}

}  // namespace
}  // namespace rcuda::client
