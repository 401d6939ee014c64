#include "client/process/own_addresses.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "common/wire/address_ranges.h"

namespace rcuda::client {
namespace {

bool names(const std::vector<wire::AddressWindow>& ranges, uint64_t begin, uint64_t end) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const wire::AddressWindow& range) {
    return range.base <= begin && end <= range.base + range.bytes;
  });
}

void* map(uint64_t address, size_t bytes) {
  return ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

TEST(OwnAddressesTest, NamesMappingsWhereWorkersWouldBe) {
  constexpr size_t kBytes = 1u << 20;
  const uint64_t in_window = wire::kWindowRanges[0].end - 40 * wire::kWindowUnit;
  const uint64_t in_base = wire::kBases.end - 40 * wire::kWindowUnit;
  for (const uint64_t address : {in_window, in_base}) {
    EXPECT_FALSE(names(own_addresses(), address, address + kBytes));
    void* const mapped = map(address, kBytes);
    ASSERT_EQ(reinterpret_cast<uint64_t>(mapped), address);
    const auto ranges = own_addresses();
    EXPECT_TRUE(names(ranges, address, address + kBytes));
    EXPECT_TRUE(names(ranges, address - wire::kWindowUnit, address)) << "it may grow";
    EXPECT_LT(ranges.size(), 10u);
    ::munmap(mapped, kBytes);
  }
}

TEST(OwnAddressesTest, PageLockedMemoryGoesWhereNothingIsMapped) {
  constexpr uint64_t kEnd = wire::kHostRangeBase + wire::kHostRangeBytes;
  EXPECT_EQ(host_addresses_beside({}).base, wire::kHostRangeBase);
  EXPECT_EQ(host_addresses_beside({{kEnd, kEnd + 4096}}).base, wire::kHostRangeBase);
  // Newer versions of AddressSanitizer have their heap in the usual range of host addresses.
  const std::vector<AddressRange> heap = {{wire::kHostRangeBase, kEnd}};
  const wire::AddressWindow other = host_addresses_beside(heap);
  EXPECT_EQ(other.bytes, wire::kHostRangeBytes);
  EXPECT_TRUE(other.base + other.bytes <= wire::kHostRangeBase || other.base >= kEnd);
  EXPECT_TRUE(std::any_of(std::begin(wire::kWindowRanges), std::end(wire::kWindowRanges),
                          [&](const AddressRange& span) {
                            return span.begin <= other.base && other.base + other.bytes <= span.end;
                          }));
}

}  // namespace
}  // namespace rcuda::client
