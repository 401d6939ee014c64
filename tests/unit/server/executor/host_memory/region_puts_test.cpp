// Copies into the client's page-locked memory over a medium that shares no pages.
#include "server/executor/host_memory/region_puts.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/unit/server/executor/host_memory/shadow_session.h"

namespace rcuda::server {
namespace {

using wire::Custom;

class RegionPutsTest : public ShadowSession {
 protected:
  RegionPutsTest() : ShadowSession(RegionPuts::kMostInOrder + 4096) {}

  void begin_copy(size_t bytes, size_t to = 0, size_t from = 0) {
    wire::CopyBody body{};
    body.destination = reinterpret_cast<uint64_t>(shadow_) + to;
    body.source = device_ + from;
    body.bytes = bytes;
    EXPECT_TRUE(client().post(Custom::kCopy, body).ok());
  }
  void set_device(int value) {
    EXPECT_EQ(driver().cuMemsetD8_v2(device_, static_cast<unsigned char>(value), here_.size()),
              CUDA_SUCCESS);
  }
  void expect_here(size_t bytes, int value) {
    const auto end = here_.begin() + static_cast<long>(bytes);
    EXPECT_EQ(std::find_if(here_.begin(), end,
                           [&](std::byte b) { return b != static_cast<std::byte>(value); }),
              end);
  }
  // Copies from the device, waits for the stream, and returns the number of host functions.
  int copy(size_t bytes, int value) {
    set_device(value);
    const int before = host_functions_.count();
    begin_copy(bytes);
    EXPECT_EQ(synchronize(), CUDA_SUCCESS);
    expect_here(bytes, value);
    return host_functions_.count() - before;
  }
};

// The bytes of a small copy are sent before the completion word, in order, so no host function has
// to wait for the client. Only the first copy of a region needs a host function.
TEST_F(RegionPutsTest, BytesOfASmallCopyGoAheadOfWhatTellsOfIt) {
  EXPECT_EQ(copy(RegionPuts::kMostBytes, 1), 1);
  EXPECT_EQ(copy(RegionPuts::kMostBytes, 2), 0);
  EXPECT_EQ(copy(transport::kMaxRegionPut + 1, 3), 0);
  EXPECT_EQ(copy(1, 4), 0);
}

TEST_F(RegionPutsTest, BytesOfALargerCopyAreWrittenInOrder) {
  EXPECT_EQ(copy(RegionPuts::kMostBytes + 1, 1), 1);
  // The next copy needs no host function if the end of the previous write is known by then. The
  // client may have the bytes a little earlier, so this tries several times.
  const auto in_order = [&](size_t bytes) {
    for (int lap = 0; lap < 100; ++lap) {
      if (copy(bytes, lap) == 0) return true;
    }
    return false;
  };
  EXPECT_TRUE(in_order(RegionPuts::kMostBytes + 1));
  EXPECT_TRUE(in_order((1 << 20) + 1));  // the second part is small
  EXPECT_TRUE(in_order(RegionPuts::kMostInOrder));
}

TEST_F(RegionPutsTest, TheLargestCopiesEndWithAHostFunction) {
  constexpr size_t kBytes = RegionPuts::kMostInOrder + 1;
  EXPECT_EQ(copy(1, 1), 1);
  EXPECT_EQ(copy(kBytes, 2), static_cast<int>(wire::parts_of(kBytes)));
}

// Copies also end with a host function if too many bytes of others are being sent.
TEST_F(RegionPutsTest, ManyCopiesAtOnceAllArrive) {
  copy(1, 1);
  constexpr size_t kBytes = 1 << 20;
  for (int lap = 2; lap < 10; ++lap) {
    set_device(lap);
    for (size_t at = 0; at < RegionPuts::kMostInOrder; at += kBytes) begin_copy(kBytes, at);
    for (size_t at = 0; at < RegionPuts::kMostInOrder; at += kBytes) begin_copy(kBytes / 2, at);
    EXPECT_EQ(synchronize(), CUDA_SUCCESS);
    expect_here(RegionPuts::kMostInOrder, lap);
  }
}

TEST_F(RegionPutsTest, OfTwoCopiesToTheSameMemoryTheLastStays) {
  constexpr size_t kBytes = 2 << 20;
  copy(kBytes, 1);
  for (int lap = 2; lap < 50; ++lap) {
    set_device(lap);
    driver().cuMemsetD8_v2(device_ + kBytes, static_cast<unsigned char>(100 + lap), kBytes);
    begin_copy(kBytes);
    begin_copy(kBytes, 0, kBytes);
    EXPECT_EQ(synchronize(), CUDA_SUCCESS);
    expect_here(kBytes, 100 + lap);
  }
}

// When the worker releases the shadow, the Link must no longer read it.
TEST_F(RegionPutsTest, MemoryIsWithdrawnWhileItIsSent) {
  constexpr size_t kBytes = RegionPuts::kMostInOrder;
  copy(kBytes, 1);
  set_device(2);
  bool filled = false;
  before_unregister_.first = [&](void* memory) {
    std::memset(memory, 3, kBytes);
    filled = true;
  };
  begin_copy(kBytes);
  const wire::HostUnexposeBody body{reinterpret_cast<uint64_t>(shadow_),
                                    static_cast<uint64_t>(region_)};
  EXPECT_EQ(client().call(Custom::kHostUnexpose, body)->result, CUDA_SUCCESS);
  EXPECT_TRUE(filled);
  expect_here(kBytes, 2);
}

}  // namespace
}  // namespace rcuda::server
