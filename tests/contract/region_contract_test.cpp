// Regions: transfers of every size and offset, mappings, and withdrawn regions.
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Company;
using transport::Link;
using transport::Region;
using transport::RegionId;

class RegionContract : public LinkContract {
 protected:
  void transfer_both_ways();
};

TEST_P(RegionContract, EveryByteArrivesWhateverSizeAndPlace) {
  connect();
  SharedBlock block(24 << 20);
  const Result<Region> region =
      client().expose(block.bytes.data(), block.bytes.size(), block.fd, 0);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_EQ(region->bytes, block.bytes.size());
  const size_t sizes[] = {
      1, 7, 8, 63, 4095, 4097, 65'536, 65'537, 300'001, (1 << 20) + 3, (9 << 20) + 1};
  std::mt19937_64 random(3);
  uint64_t total = 0;
  for (size_t size : sizes) {
    const uint64_t offset = 8 + random() % (block.bytes.size() - size - 16);
    std::memset(block.bytes.data(), 0x5a, block.bytes.size());
    std::vector<std::byte> local(size + 2, std::byte{0x77});
    fill_pattern(std::span(local).subspan(1, size), size);
    ASSERT_TRUE(
        write_and_wait(server(), region->id, offset, std::span(local).subspan(1, size)).ok());
    ASSERT_TRUE(has_pattern(block.bytes.subspan(offset, size), size));
    EXPECT_EQ(block.bytes[offset - 1], std::byte{0x5a});
    EXPECT_EQ(block.bytes[offset + size], std::byte{0x5a});

    fill_pattern(block.bytes.subspan(offset, size), size + 99);
    ASSERT_TRUE(
        read_and_wait(server(), region->id, offset, std::span(local).subspan(1, size)).ok());
    ASSERT_TRUE(has_pattern(std::span(local).subspan(1, size), size + 99));
    EXPECT_EQ(local.front(), std::byte{0x77});
    EXPECT_EQ(local.back(), std::byte{0x77});
    total += 2 * size;
  }
  EXPECT_EQ(server().counters().transfer_bytes, total);
  EXPECT_TRUE(write_and_wait(server(), region->id, 0, {}).ok());
}

// The peer is notified of all bytes of a write, once, and only after the bytes have arrived.
TEST_P(RegionContract, WritesWithImmediateTellOfTheirArrival) {
  connect();
  constexpr size_t kFew = 5;  // the number of writes that are not of Company::kMany
  constexpr size_t kSizes[] = {1,      4097,   65'537,  300'001,      (9 << 20) + 1,
                               65'535, 65'536, 300'001, (9 << 20) + 1};
  constexpr size_t kSlot = 10 << 20;
  SharedBlock block(kSlot * std::size(kSizes));
  const Result<Region> region =
      client().expose(block.bytes.data(), block.bytes.size(), block.fd, 0);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> local(block.bytes.size());
  fill_pattern(local, 5);
  if (!traits().has_immediates) {
    Pending pending;
    server().write_with_immediate(region->id, 0, local.data(), 1, 1, Company::kAlone,
                                  pending.begin());
    ASSERT_TRUE(pending.wait());
    EXPECT_EQ(pending.last_error().code(), Code::kUnsupported);
    return;
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, uint64_t> arrived;  // guarded by mutex
  bool wrong = false;                    // also guarded by mutex
  client().on_immediate([&](uint32_t immediate, uint64_t bytes) {
    std::lock_guard lock(mutex);
    const size_t slot = immediate - 1;
    wrong |= slot >= std::size(kSizes);
    if (wrong) return;
    arrived[slot] += bytes;
    changed.notify_all();
    if (arrived[slot] < kSizes[slot]) return;
    wrong |= std::memcmp(block.bytes.data() + slot * kSlot, local.data() + slot * kSlot,
                         kSizes[slot]) != 0;
  });
  const auto write_all = [&](Company of_few) {
    std::memset(block.bytes.data(), 0, block.bytes.size());
    {
      std::lock_guard lock(mutex);
      arrived.clear();
    }
    Pending pending;
    for (size_t slot = 0; slot < std::size(kSizes); ++slot) {
      const auto company = slot < kFew ? of_few : Company::kMany;
      server().write_with_immediate(region->id, slot * kSlot, local.data() + slot * kSlot,
                                    kSizes[slot], slot + 1, company, pending.begin());
    }
    ASSERT_TRUE(pending.wait());
    ASSERT_TRUE(pending.last_error().ok()) << pending.last_error().message();
    std::unique_lock lock(mutex);
    const auto all_arrived = [&] {
      for (size_t slot = 0; slot < std::size(kSizes); ++slot) {
        if (arrived[slot] != kSizes[slot]) return false;
      }
      return true;
    };
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), all_arrived));
    EXPECT_FALSE(wrong);
  };
  write_all(Company::kAlone);
  server().lend(local.data(), local.size());
  write_all(Company::kAwaited);
  // The peer is not notified of a write that did not arrive, or that has no immediate.
  ASSERT_TRUE(write_and_wait(server(), region->id, 0, std::span(local).first(8)).ok());
  const Result<Region> withdrawn =
      client().expose(block.bytes.data(), block.bytes.size(), block.fd, 0);
  ASSERT_TRUE(withdrawn.ok());
  ASSERT_TRUE(client().unexpose(withdrawn->id).ok());
  const auto write = [&](RegionId id, uint64_t offset) {
    Pending pending;
    server().write_with_immediate(id, offset, local.data(), 8, 1, Company::kMany, pending.begin());
    EXPECT_TRUE(pending.wait());
  };
  write(withdrawn->id, 0);
  // Uses the same stream as the dropped write, because nothing else is in flight. So when this
  // write ends, the dropped write has been read.
  ASSERT_TRUE(write_and_wait(server(), region->id, 0, std::span(local).first(8)).ok());
  write(region->id, block.bytes.size());
  if (traits().has_adapter) {  // the adapter has refused both writes
    client().on_immediate(nullptr);
    std::lock_guard lock(mutex);
    EXPECT_EQ(arrived[0], kSizes[0]);
    return;
  }
  const auto broken = [&] { return !client().status().ok(); };
  (void)client().wait(broken, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  EXPECT_FALSE(client().status().ok());
  client().on_immediate(nullptr);
  std::lock_guard lock(mutex);
  EXPECT_FALSE(wrong);
  EXPECT_EQ(arrived[0], kSizes[0]);
}

// Both Links must be connected.
void RegionContract::transfer_both_ways() {
  constexpr size_t kSlot = 700'001;
  constexpr size_t kSlots = 8;
  SharedBlock blocks[2] = {SharedBlock(kSlot * kSlots), SharedBlock(kSlot * kSlots)};
  Link* links[2] = {&client(), &server()};
  std::vector<std::byte> sources[2];
  std::vector<std::byte> sinks[2];
  Region regions[2];
  for (int side = 0; side < 2; ++side) {
    const Result<Region> region =
        links[side]->expose(blocks[side].bytes.data(), blocks[side].bytes.size(), blocks[side].fd);
    ASSERT_TRUE(region.ok());
    regions[side] = *region;
    sources[side].resize(kSlot * kSlots);
    sinks[side].resize(kSlot * kSlots);
    fill_pattern(sources[side], side);
  }
  const int laps = rounds(10, faulty());
  for (int lap = 0; lap < laps; ++lap) {
    Pending writes;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      for (int side = 0; side < 2; ++side) {
        links[side]->write(regions[1 - side].id, slot * kSlot, sources[side].data() + slot * kSlot,
                           kSlot, writes.begin());
      }
    }
    ASSERT_TRUE(writes.wait());
    ASSERT_TRUE(writes.last_error().ok()) << writes.last_error().message();
    Pending reads;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      for (int side = 0; side < 2; ++side) {
        links[side]->read(regions[1 - side].id, slot * kSlot, sinks[side].data() + slot * kSlot,
                          kSlot, reads.begin());
      }
    }
    ASSERT_TRUE(reads.wait());
    ASSERT_TRUE(reads.last_error().ok()) << reads.last_error().message();
    for (int side = 0; side < 2; ++side) {
      ASSERT_EQ(std::memcmp(sinks[side].data(), sources[side].data(), sinks[side].size()), 0);
      std::memset(sinks[side].data(), 0, sinks[side].size());
      std::memset(blocks[side].bytes.data(), 0, blocks[side].bytes.size());
    }
  }
}

TEST_P(RegionContract, ManyTransfersAtOnceInBothDirections) {
  connect();
  transfer_both_ways();
}

TEST_P(RegionContract, AReceiverMaySpinBeforeItSleeps) {
  if (!traits().copies_by_cpu) GTEST_SKIP() << "has no receiving threads";
  for (const auto spin : {std::chrono::microseconds(0), std::chrono::microseconds(2000)}) {
    const transport::LinkOptions options{.receive_spin = spin};
    connect(options, options);
    transfer_both_ways();
  }
}

TEST_P(RegionContract, RefusesWhatIsOutsideOrUnknown) {
  connect({.peer_timeout = std::chrono::milliseconds(2000)},
          {.peer_timeout = std::chrono::milliseconds(2000)});
  SharedBlock block(8192);
  const Result<Region> region = client().expose(block.bytes.data(), 8192, block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(16384);
  const auto write = [&](RegionId id, uint64_t offset, size_t count) {
    return write_and_wait(server(), id, offset, std::span(bytes).first(count)).code();
  };
  EXPECT_EQ(write(region->id, 0, 8192), Code::kOk);
  EXPECT_EQ(write(region->id, 0, 8193), Code::kInvalidArgument);
  EXPECT_EQ(write(region->id, 8192, 1), Code::kInvalidArgument);
  EXPECT_EQ(write(region->id, ~uint64_t{0}, 2), Code::kInvalidArgument);
  EXPECT_EQ(write(RegionId{77}, 0, 8), Code::kNotFound);
  EXPECT_EQ(client().expose(nullptr, 8).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(client().unexpose(RegionId{77}).code(), Code::kNotFound);
  EXPECT_TRUE(server().status().ok());
  EXPECT_TRUE(client().status().ok());
}

TEST_P(RegionContract, AWithdrawnRegionIsNeverTouchedAgain) {
  connect();
  constexpr size_t kTransfers = 6;
  std::vector<std::byte> bytes(4 << 20);
  std::vector<std::byte> sink(kTransfers * bytes.size());
  for (int i = 0; i < 10; ++i) {
    SharedBlock block(kTransfers * bytes.size());
    const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
    ASSERT_TRUE(region.ok());
    Pending transfers;
    for (size_t n = 0; n < kTransfers; ++n) {
      // Each transfer has its own place, because transfers have no order.
      const size_t at = n * bytes.size();
      if (i % 2 == 0) {
        server().write(region->id, at, bytes.data(), bytes.size(), transfers.begin());
      } else {
        server().read(region->id, at, sink.data() + at, bytes.size(), transfers.begin());
      }
    }
    ASSERT_TRUE(transfers.wait(4));
    const Status withdrawn = client().unexpose(region->id);
    ASSERT_TRUE(withdrawn.ok()) << withdrawn.message();
    EXPECT_EQ(client().unexpose(region->id).code(), Code::kNotFound);
    if (!traits().shares_pages) {
      // The peer's transfers have ended or will fail. (With shared memory the pages stay valid
      // instead.)
      ::mprotect(block.bytes.data(), block.bytes.size(), PROT_NONE);
    }
    ASSERT_TRUE(transfers.wait());
    const auto write = [&] {
      return write_and_wait(server(), region->id, 0, std::span(bytes).first(8)).code();
    };
    if (traits().shares_pages) {
      while (write() == Code::kOk) std::this_thread::yield();  // until the peer has been notified
    } else {
      EXPECT_NE(write(), Code::kOk);
    }
    ::mprotect(block.bytes.data(), block.bytes.size(), PROT_READ | PROT_WRITE);
  }
  EXPECT_TRUE(client().status().ok()) << client().status().message();
}

TEST_P(RegionContract, MapShowsTheSamePagesWhereTheyAreShared) {
  connect();
  SharedBlock block(64 << 10);
  const Result<Region> region = client().expose(block.bytes.data() + 8192, 16384, block.fd, 8192);
  ASSERT_TRUE(region.ok());
  const Result<void*> mapped = server().map(region->id, 16384);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  if (!traits().shares_pages) {
    EXPECT_EQ(*mapped, nullptr);
    return;
  }
  ASSERT_NE(*mapped, nullptr);
  auto* there = static_cast<std::byte*>(*mapped);
  fill_pattern(block.bytes.subspan(8192, 16384), 5);
  EXPECT_TRUE(has_pattern(std::span(there, 16384), 5));
  there[16383] = std::byte{9};
  EXPECT_EQ(block.bytes[8192 + 16383], std::byte{9});
  EXPECT_EQ(*server().map(region->id, 16384), *mapped);
  // A mapping stays valid after unexpose(), until unmap().
  ASSERT_TRUE(client().unexpose(region->id).ok());
  there[0] = std::byte{3};
  EXPECT_EQ(block.bytes[8192], std::byte{3});
  EXPECT_TRUE(server().unmap(region->id).ok());
  EXPECT_EQ(server().unmap(region->id).code(), Code::kNotFound);
}

TEST_P(RegionContract, MapAtAnAddressLeavesTheRangeReserved) {
  if (!traits().shares_pages) GTEST_SKIP() << "shares no pages";
  connect();
  SharedBlock block(64 << 10);
  const Result<Region> region = client().expose(block.bytes.data(), 65536, block.fd);
  ASSERT_TRUE(region.ok());
  void* range = ::mmap(nullptr, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Result<void*> mapped = server().map(region->id, 65536, range);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(*mapped, range);
  block.bytes[100] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(range)[100], std::byte{42});
  ASSERT_TRUE(server().unmap(region->id).ok());
  // The range is still reserved: a mapping with MAP_FIXED_NOREPLACE fails.
  EXPECT_EQ(
      ::mmap(range, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
      MAP_FAILED);
  ::munmap(range, 65536);
}

TEST_P(RegionContract, AMappedRegionKeepsNoDescriptorAndIsStillReached) {
  if (!traits().shares_pages) GTEST_SKIP() << "shares no pages";
  connect();
  constexpr size_t kRegions = 100, kBytes = 8192;
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(open), end(open)));
  };
  const size_t before = descriptors();
  std::vector<RegionId> regions;
  for (size_t i = 0; i < kRegions; ++i) {
    SharedBlock block(kBytes);
    const Result<Region> region =
        client().expose(block.bytes.data() + 4096, kBytes - 4096, block.fd, 4096);
    ASSERT_TRUE(region.ok()) << region.status().message();
    regions.push_back(region->id);
    ASSERT_TRUE(server().map(region->id, kBytes - 4096).ok());
  }
  EXPECT_LT(descriptors(), before + kRegions / 2);

  // Transfers and further mappings use the same pages.
  auto* mapped = static_cast<std::byte*>(*server().map(regions[7], 4096));
  std::vector<std::byte> bytes(100, std::byte{5});
  ASSERT_TRUE(write_and_wait(server(), regions[7], 1000, bytes).ok());
  EXPECT_EQ(mapped[1099], std::byte{5});
  for (const RegionId region : {regions[7], regions[8]}) {
    mapped = static_cast<std::byte*>(*server().map(region, 4096));
    mapped[4095] = std::byte{6};
    ASSERT_TRUE(server().unmap(region).ok());
    const Result<void*> again = server().map(region, 4096);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(static_cast<std::byte*>(*again)[4095], std::byte{6});
  }
}

TEST_P(RegionContract, MapRefusesARegionOfAnotherSizeThanTheCallerCountsOn) {
  if (!traits().shares_pages) GTEST_SKIP() << "shares no pages";
  connect();
  SharedBlock block(64 << 10);
  const Result<Region> region = client().expose(block.bytes.data(), 32768, block.fd);
  ASSERT_TRUE(region.ok());
  void* range = ::mmap(nullptr, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // If the region were shorter, the caller would fault beyond it; if longer, it would replace the
  // caller's pages.
  for (const size_t bytes : {size_t{65536}, size_t{32768 + 4096}, size_t{4096}, size_t{0}}) {
    EXPECT_EQ(server().map(region->id, bytes, range).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(server().map(region->id, bytes).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(server().unmap(region->id).code(), Code::kNotFound);
  const Result<void*> mapped = server().map(region->id, 32768, range);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  block.bytes[32767] = std::byte{7};
  EXPECT_EQ(static_cast<std::byte*>(range)[32767], std::byte{7});
  EXPECT_TRUE(server().unmap(region->id).ok());
  ::munmap(range, 65536);
}

TEST_P(RegionContract, MemoryWithoutBackingIsReachedWhereverTheMediumCan) {
  connect();
  std::vector<std::byte> memory(100'000);
  const Result<Region> region = client().expose(memory.data(), memory.size());
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(*server().map(region->id, memory.size()), nullptr);
  std::vector<std::byte> local(memory.size());
  fill_pattern(local, 1);
  const Status status = write_and_wait(server(), region->id, 0, local);
  if (traits().shares_pages) {
    EXPECT_EQ(status.code(), Code::kUnsupported);
  } else {
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(has_pattern(memory, 1));
  }
}

TEST_P(RegionContract, ABackingThatCouldShrinkIsRefused) {
  if (!traits().shares_pages) GTEST_SKIP() << "shares no pages";
  connect();
  const UniqueFd file(::memfd_create("unsealable", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  std::vector<std::byte> memory(4096);
  EXPECT_EQ(client().expose(memory.data(), 4096, file.get()).status().code(),
            Code::kInvalidArgument);
}

TEST_P(RegionContract, ABackingThatCannotBePassedOnIsAnErrorOfExposing) {
  if (!traits().shares_pages) GTEST_SKIP() << "shares no pages";
  connect();
  SharedBlock block(4096);
  {
    const DescriptorLimit limit;
    const Result<Region> region = client().expose(block.bytes.data(), 4096, block.fd);
    ASSERT_FALSE(region.ok());
    EXPECT_EQ(region.status().sys_errno(), EMFILE);
    EXPECT_NE(region.status().context().find("ulimit -n"), std::string::npos)
        << region.status().message();
  }
  // The Link still works.
  const Result<Region> region = client().expose(block.bytes.data(), 4096, block.fd);
  ASSERT_TRUE(region.ok()) << region.status().message();
  std::vector<std::byte> bytes(4096);
  fill_pattern(bytes, 1);
  ASSERT_TRUE(write_and_wait(server(), region->id, 0, bytes).ok());
  EXPECT_TRUE(has_pattern(block.bytes, 1));
}

TEST_P(RegionContract, ManyRegionsComeAndGo) {
  connect();
  SharedBlock block(1 << 20);
  std::vector<std::byte> bytes(4096);
  const int count = rounds(2000, faulty());
  for (int i = 0; i < count; ++i) {
    const size_t offset = i % 255 * 4096;
    const Result<Region> region =
        client().expose(block.bytes.data() + offset, 4096, block.fd, offset);
    ASSERT_TRUE(region.ok());
    fill_pattern(bytes, i);
    ASSERT_TRUE(write_and_wait(server(), region->id, 0, bytes).ok());
    ASSERT_TRUE(has_pattern(block.bytes.subspan(offset, 4096), i));
    ASSERT_TRUE(client().unexpose(region->id).ok());
  }
}

TEST_P(RegionContract, WithAnAdapterNothingIsCopiedBetweenRegions) {
  if (!traits().has_adapter) GTEST_SKIP() << "about adapters";
  connect();
  SharedBlock block(4 << 20);
  SharedBlock staging(4 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), 4 << 20, block.fd);
  ASSERT_TRUE(region.ok());
  ASSERT_TRUE(server().expose(staging.bytes.data(), 4 << 20, staging.fd).ok());
  fill_pattern(staging.bytes, 1);
  ASSERT_TRUE(write_and_wait(server(), region->id, 0, staging.bytes).ok());
  ASSERT_TRUE(has_pattern(block.bytes, 1));
  ASSERT_TRUE(read_and_wait(server(), region->id, 0, staging.bytes).ok());
  EXPECT_EQ(server().counters().transfer_bytes, 8u << 20);
  EXPECT_EQ(server().counters().copied_bytes, 0u);
  EXPECT_EQ(client().counters().copied_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Link, RegionContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
