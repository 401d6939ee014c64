#include "client/hostmem/host_addresses.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

using Taken = std::pair<uint64_t, size_t>;  // base, bytes

bool in_range(const Taken& taken) {
  return taken.first >= wire::kHostRangeBase &&
         taken.first + taken.second <= wire::kHostRangeBase + wire::kHostRangeBytes;
}

// Whether a 64-bit word is an address of the range if its upper half is the upper half of such an
// address and its lower half is an integer that programs often use.
bool is_hit_by_integers(const Taken& taken) {
  const uint64_t upper = taken.first >> 32 << 32;
  for (const uint32_t lower : {0u, 1u, 2u, 224u, 65'536u, 20'000'000u, 0x3f80'0000u, ~0u, ~1u}) {
    const uint64_t address = upper | lower;
    if (address >= taken.first && address - taken.first < taken.second) return true;
  }
  return false;
}

TEST(HostAddressesTest, SmallIntegersBesideHalfAPointerPointToNothing) {
  HostAddresses addresses;
  for (int i = 0; i < 100; ++i) {
    for (const size_t bytes : {size_t{1}, size_t{32} << 20, HostAddresses::kMostQuietBytes}) {
      const Taken taken{addresses.take(bytes), bytes};
      if (taken.first == 0) return;  // a small range is full
      EXPECT_TRUE(in_range(taken));
      if (i < 4) {
        EXPECT_FALSE(is_hit_by_integers(taken)) << std::hex << taken.first;
      }
    }
  }
}

TEST(HostAddressesTest, MoreThanOneHalfCanTellApartHasRoomToo) {
  HostAddresses addresses;
  const Taken taken{addresses.take(size_t{6} << 30), size_t{6} << 30};
  EXPECT_TRUE(in_range(taken));
  const uint64_t behind = addresses.take(4096);
  EXPECT_TRUE(in_range({behind, 4096}));
  EXPECT_FALSE(behind >= taken.first && behind - taken.first < taken.second);
  EXPECT_EQ(addresses.take(wire::kHostRangeBytes), 0u);
  EXPECT_EQ(addresses.take(~size_t{0}), 0u);
  addresses.give_back(taken.first, taken.second);
  EXPECT_EQ(addresses.take(taken.second), taken.first);
}

TEST(HostAddressesTest, AllocationsKeepApartAndAddressesAreUsedAgain) {
  HostAddresses addresses;
  std::mt19937 random(1);
  std::vector<Taken> taken;
  for (int i = 0; i < 3000; ++i) {
    if (taken.size() > 40 || (!taken.empty() && random() % 3 == 0)) {
      const size_t which = random() % taken.size();
      addresses.give_back(taken[which].first, taken[which].second);
      taken.erase(taken.begin() + static_cast<long>(which));
      continue;
    }
    const size_t bytes = 1 + random() % (size_t{1} << (random() % 31));
    const Taken next{addresses.take(bytes), bytes};
    ASSERT_TRUE(in_range(next));
    for (const Taken& other : taken) {
      // A page between them belongs to neither.
      ASSERT_TRUE(next.first + next.second + 4096 <= other.first ||
                  other.first + other.second + 4096 <= next.first);
    }
    taken.push_back(next);
  }
  for (const Taken& last : taken) addresses.give_back(last.first, last.second);
  // Nothing is lost.
  const size_t all = wire::kHostRangeBytes - (64u << 10);
  EXPECT_EQ(addresses.take(all), wire::kHostRangeBase);
}

}  // namespace
}  // namespace rcuda::client
