// Copies into the client's page-locked memory over a medium that shares no pages.
#include "server/executor/memory/region_puts.h"

#include <vector>

#include "tests/unit/server/shadow_session.h"

namespace rcuda::server {
namespace {

using wire::Custom;

class RegionPutsTest : public ShadowSession {
 protected:
  RegionPutsTest() : ShadowSession(RegionPuts::kMostBytes + 4096) {}

  // Copies from the device, waits for the stream, and returns the number of host functions.
  int copy(size_t bytes, int value) {
    EXPECT_EQ(driver().cuMemsetD8_v2(device_, static_cast<unsigned char>(value), here_.size()),
              CUDA_SUCCESS);
    const int before = host_functions_.count();
    wire::CopyBody body{};
    body.destination = reinterpret_cast<uint64_t>(shadow_);
    body.source = device_;
    body.bytes = bytes;
    EXPECT_TRUE(client().post(Custom::kCopy, body).ok());
    EXPECT_EQ(synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(std::vector<std::byte>(here_.begin(), here_.begin() + static_cast<long>(bytes)),
              std::vector<std::byte>(bytes, static_cast<std::byte>(value)));
    return host_functions_.count() - before;
  }
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
