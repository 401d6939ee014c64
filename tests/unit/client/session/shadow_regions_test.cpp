#include "client/session/shadow_regions.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/wire/frame.h"
#include "tests/support/link_pair.h"

namespace rcuda::client {
namespace {

constexpr size_t kBytes = 6u << 20;

class ShadowRegionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < kBytes; ++i) here_[i] = static_cast<std::byte>(i * 7 + i / 4099);
    const auto region = links_.server->expose(there_.data(), kBytes);
    ASSERT_TRUE(region.ok());
    links_.server->on_immediate([this](uint32_t immediate, uint64_t bytes) {
      std::lock_guard lock(mutex_);
      arrived_[immediate] += bytes;
    });
    shadows_.add(*links_.client, begin(), kBytes, region->id);
  }
  void TearDown() override { links_.server->on_immediate(nullptr); }

  uint32_t send(uint64_t address, uint64_t bytes) {
    return shadows_.send(*links_.client, address, bytes, transport::Company::kAlone);
  }
  uint64_t begin() const { return reinterpret_cast<uint64_t>(here_.data()); }
  // Waits for the write with this immediate. Returns false if its bytes do not arrive.
  bool comes(uint32_t immediate, uint64_t bytes) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
      std::lock_guard lock(mutex_);
      if (arrived_[immediate] == bytes) return true;
    }
    return false;
  }

  std::vector<std::byte> here_ = std::vector<std::byte>(kBytes), there_ = here_;
  std::mutex mutex_;
  std::map<uint32_t, uint64_t> arrived_;
  ShadowRegions shadows_;  // before the Links, whose threads use it
  test::LinkPair links_ = test::make_link_pair(test::medium_named("tcp")).value();
};

TEST_F(ShadowRegionsTest, ALaterWriteSendsTheBytesOfItsBeginning) {
  const auto later = shadows_.send_later(*links_.client, begin(), 5000, transport::Company::kAlone);
  ASSERT_NE(later.immediate, 0u);
  here_[4999] = std::byte{99};
  later.begin();
  EXPECT_TRUE(comes(later.immediate, 5000));
  EXPECT_EQ(there_[4999], std::byte{99});
  EXPECT_EQ(shadows_.send_later(*links_.client, begin() + kBytes, 1, transport::Company::kAlone)
                .immediate,
            0u);
}

TEST_F(ShadowRegionsTest, EachPartGoesToItsPlaceWithItsNumber) {
  constexpr uint64_t kOffset = 4099, kSent = 5u << 20;
  const uint32_t first = send(begin() + kOffset, kSent);
  ASSERT_NE(first, 0u);
  const uint64_t part = wire::part_bytes_of(kSent);
  for (uint64_t at = 0; at < kSent; at += part) {
    EXPECT_TRUE(comes(wire::immediate_of(first, at / part), std::min(part, kSent - at)));
  }
  std::vector<std::byte> expected(kBytes);
  std::copy_n(here_.begin() + kOffset, kSent, expected.begin() + kOffset);
  EXPECT_EQ(there_, expected);
}

TEST_F(ShadowRegionsTest, MemoryThatLiesInNoShadowIsNotSent) {
  EXPECT_EQ(send(begin() - 1, 2), 0u);
  EXPECT_EQ(send(begin() + 1, kBytes), 0u);
  EXPECT_EQ(send(begin() + kBytes, 1), 0u);
  EXPECT_NE(send(begin() + kBytes - 1, 1), 0u);
  shadows_.remove(*links_.client, begin());
  EXPECT_EQ(send(begin(), 1), 0u);
}

TEST_F(ShadowRegionsTest, TheWorkerAsksForWhatWouldHoldUpOthers) {
  const std::vector<std::byte> large(ShadowRegions::kMostBytes + 1);
  const auto address = reinterpret_cast<uint64_t>(large.data());
  shadows_.add(*links_.client, address, large.size(), transport::RegionId{99});
  EXPECT_EQ(send(address, large.size()), 0u);
  // Writes that have been sent no longer count.
  const uint64_t part = wire::part_bytes_of(kBytes);
  for (uint64_t sent = 0; sent < 2 * ShadowRegions::kMostBytes; sent += kBytes) {
    const uint32_t first = send(begin(), kBytes);
    ASSERT_NE(first, 0u) << sent;
    for (uint64_t i = 0; i < wire::parts_of(kBytes); ++i) {
      ASSERT_TRUE(comes(wire::immediate_of(first, i), std::min(part, kBytes - i * part)));
    }
  }
}

TEST_F(ShadowRegionsTest, MemoryMayBeFreedOnceItIsRemoved) {
  const uint32_t first = send(begin(), kBytes);
  shadows_.remove(*links_.client, begin());
  const std::vector<std::byte> sent = here_;
  std::fill(here_.begin(), here_.end(), std::byte{0xff});
  const uint64_t part = wire::part_bytes_of(kBytes);
  for (uint64_t i = 0; i < wire::parts_of(kBytes); ++i) {
    EXPECT_TRUE(comes(wire::immediate_of(first, i), std::min(part, kBytes - i * part)));
  }
  EXPECT_EQ(there_, sent);
}

TEST_F(ShadowRegionsTest, ALostLinkEndsTheWrites) {
  for (int i = 0; i < 8; ++i) (void)send(begin(), kBytes);
  links_.client->close();
  shadows_.remove(*links_.client, begin());
}

TEST(ImmediatesTest, NumbersGoRoundPastNone) {
  EXPECT_EQ(wire::immediate_of(1, 0), 1u);
  EXPECT_EQ(wire::immediate_of(UINT32_MAX, 0), UINT32_MAX);
  EXPECT_EQ(wire::immediate_of(UINT32_MAX, 1), 1u);
  EXPECT_EQ(wire::immediate_of(7, uint64_t{UINT32_MAX} * 3), 7u);
  ShadowRegions shadows;
  const uint32_t first = shadows.take_immediates(3);
  EXPECT_EQ(shadows.take_immediates(1), wire::immediate_of(first, 3));
}

}  // namespace
}  // namespace rcuda::client
