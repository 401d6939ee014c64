// The only assumption of a Link about the local memory of transfers: it is valid while they run.
// Tests memory that is unmapped and mapped again, and device memory.
#include <thread>

#include <sys/mman.h>

#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Region;
using transport::RegionId;

class MemoryContract : public LinkContract {};

// Large enough to be registered rather than copied, whatever the measured costs are.
constexpr size_t kBytes = 2u << 20;

std::span<std::byte> map_memory(void* at = nullptr, size_t bytes = kBytes) {
  const int fixed = at != nullptr ? MAP_FIXED : 0;
  void* base =
      ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  EXPECT_NE(base, MAP_FAILED);
  return {static_cast<std::byte*>(base), bytes};
}

struct Target {
  explicit Target(transport::Link& owner, size_t bytes = kBytes) : block(bytes) {
    const Result<Region> region = owner.expose(block.bytes.data(), bytes, block.fd);
    EXPECT_TRUE(region.ok()) << region.status().message();
    if (region.ok()) id = region->id;
  }
  SharedBlock block;
  RegionId id = RegionId::kNone;
};

// Fills the memory, writes it into the peer's region, reads it back, and checks both.
void exchange(transport::Link& link, const Target& target, std::span<std::byte> memory,
              uint64_t seed) {
  fill_pattern(memory, seed);
  const Status written = write_and_wait(link, target.id, 0, memory);
  ASSERT_TRUE(written.ok()) << written.message();
  ASSERT_TRUE(has_pattern(target.block.bytes.first(memory.size()), seed));
  fill_pattern(target.block.bytes.first(memory.size()), seed + 1);
  const Status read = read_and_wait(link, target.id, 0, memory);
  ASSERT_TRUE(read.ok()) << read.message();
  ASSERT_TRUE(has_pattern(memory, seed + 1));
}

TEST_P(MemoryContract, NoTransferSeesPagesThatAreNoLongerThere) {
  connect();
  const Target target(server());
  std::span<std::byte> memory = map_memory();
  uint64_t seed = 1;
  const auto thrice = [&] {  // a medium may keep registrations of memory that it has used
    for (int i = 0; i < 3; ++i)
      ASSERT_NO_FATAL_FAILURE(exchange(client(), target, memory, seed += 2));
  };
  ASSERT_NO_FATAL_FAILURE(thrice());
  // Unmapped, then other memory at the same address.
  ::munmap(memory.data(), memory.size());
  memory = map_memory(memory.data());
  ASSERT_NO_FATAL_FAILURE(thrice());
  // Replaced in one step, in the middle only.
  map_memory(memory.data() + kBytes / 4, kBytes / 2);
  ASSERT_NO_FATAL_FAILURE(thrice());
  // Discarded: the same mapping, other pages.
  ASSERT_EQ(::madvise(memory.data(), memory.size(), MADV_DONTNEED), 0);
  ASSERT_NO_FATAL_FAILURE(thrice());
  ::munmap(memory.data(), memory.size());
  memory = map_memory();
  ASSERT_NO_FATAL_FAILURE(thrice());
  // Moved away as a whole; other memory is moved to its address.
  const std::span<std::byte> other = map_memory();
  void* moved =
      ::mremap(memory.data(), kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, map_memory().data());
  ASSERT_NE(moved, MAP_FAILED);
  ASSERT_EQ(::mremap(other.data(), kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory.data()),
            memory.data());
  ASSERT_NO_FATAL_FAILURE(thrice());
  ASSERT_NO_FATAL_FAILURE(exchange(client(), target, {static_cast<std::byte*>(moved), kBytes}, 99));
  ::munmap(moved, kBytes);
  ::munmap(memory.data(), memory.size());
}

TEST_P(MemoryContract, MemoryThatComesAndGoesInSeveralThreads) {
  connect();
  const int count = rounds(100, faulty());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const Target target(server());
      for (int i = 0; i < count; ++i) {
        // The kernel reuses the same addresses, for any of the threads.
        const std::span<std::byte> memory = map_memory();
        const auto seed = static_cast<uint64_t>(t * 100'000 + 4 * i);
        for (int again = 0; again < 2; ++again) {
          ASSERT_NO_FATAL_FAILURE(exchange(client(), target, memory, seed + 2 * again));
        }
        ::munmap(memory.data(), memory.size());
      }
      EXPECT_TRUE(server().unexpose(target.id).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MemoryContract, MemoryThatIsReadOnlyCanBeSent) {
  connect();
  const Target target(server());
  const std::span<std::byte> memory = map_memory();
  fill_pattern(memory, 7);
  ::mprotect(memory.data(), memory.size(), PROT_READ);
  ASSERT_TRUE(write_and_wait(client(), target.id, 0, memory).ok());
  EXPECT_TRUE(has_pattern(target.block.bytes, 7));
  ::munmap(memory.data(), memory.size());
}

TEST_P(MemoryContract, EachTransferRegistersItsMemory) {
  if (!traits().has_adapter) GTEST_SKIP() << "registers no memory";
  connect();
  const Target target(server());
  const std::span<std::byte> memory = map_memory();
  const transport::LinkCounters before = client().counters();
  for (int i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(exchange(client(), target, memory, i));
  const transport::LinkCounters after = client().counters();
  EXPECT_EQ(after.registrations, before.registrations + 2 * 5);  // a write and a read in each round
  EXPECT_EQ(after.copied_bytes, before.copied_bytes);
  ::munmap(memory.data(), memory.size());
}

TEST_P(MemoryContract, DeviceMemoryIsReachedByAnAdapterOnly) {
  connect();
  const Target target(client());
  const std::span<std::byte> memory = map_memory();
  const Result<Region> region = server().expose_device(memory.data(), memory.size(), {});
  if (!traits().has_adapter) {
    EXPECT_EQ(region.status().code(), Code::kUnsupported);
    EXPECT_EQ(server().loop_back(memory.data(), memory.data(), 8).code(), Code::kUnsupported);
    ::munmap(memory.data(), memory.size());
    return;
  }
  ASSERT_TRUE(region.ok()) << region.status().message();
  const transport::LinkCounters before = server().counters();
  // The server's CPU copies no byte from or to the device, for small and large transfers.
  for (size_t bytes : {size_t{8}, size_t{100'001}, kBytes}) {
    ASSERT_NO_FATAL_FAILURE(exchange(server(), target, memory.first(bytes), bytes));
    fill_pattern(target.block.bytes, bytes + 5);
    ASSERT_TRUE(write_and_wait(client(), region->id, 0, target.block.bytes.first(bytes)).ok());
    ASSERT_TRUE(has_pattern(memory.first(bytes), bytes + 5));
  }
  EXPECT_EQ(server().counters().copied_bytes, before.copied_bytes);
  EXPECT_TRUE(server().unexpose(region->id).ok());
  EXPECT_EQ(server().expose_device(nullptr, 8, {}).status().code(), Code::kInvalidArgument);
  // A descriptor that is not a dma-buf is refused.
  EXPECT_FALSE(server().expose_device(memory.data(), 4096, {.dma_buf = target.block.fd}).ok());
  EXPECT_TRUE(server().status().ok());
  ::munmap(memory.data(), memory.size());
}

TEST_P(MemoryContract, RegionsMayOverlap) {
  if (!traits().has_adapter) GTEST_SKIP() << "registers no memory";
  connect();
  const Target target(client());
  const std::span<std::byte> memory = map_memory();
  const Result<Region> whole = server().expose_device(memory.data(), memory.size(), {});
  const Result<Region> again = server().expose_device(memory.data(), memory.size(), {});
  const Result<Region> part =
      server().expose_device(memory.data() + 4096, 4096, {.for_peer = false});
  ASSERT_TRUE(whole.ok() && again.ok() && part.ok());
  const transport::LinkCounters before = server().counters();
  ASSERT_TRUE(server().unexpose(again->id).ok());
  ASSERT_NO_FATAL_FAILURE(exchange(server(), target, memory.subspan(4096, 8192), 1));
  ASSERT_TRUE(server().unexpose(part->id).ok());
  ASSERT_NO_FATAL_FAILURE(exchange(server(), target, memory.subspan(4096, 4096), 3));
  EXPECT_EQ(server().counters().copied_bytes, before.copied_bytes);
  ASSERT_TRUE(server().unexpose(whole->id).ok());
  ::munmap(memory.data(), memory.size());
}

TEST_P(MemoryContract, TheAdapterReachesWhatItIsShown) {
  if (!traits().has_adapter) GTEST_SKIP() << "has no adapter";
  connect();
  const std::span<std::byte> from = map_memory();
  const std::span<std::byte> to = map_memory();
  fill_pattern(from, 5);
  EXPECT_EQ(client().loop_back(to.data(), from.data(), 64).code(), Code::kInvalidArgument);
  ASSERT_TRUE(client().expose(from.data(), from.size()).ok());
  ASSERT_TRUE(client().expose_device(to.data(), to.size(), {.for_peer = false}).ok());
  for (int i = 0; i < 3; ++i) {
    const Status moved = client().loop_back(to.data() + 4096, from.data() + 64, 65536);
    ASSERT_TRUE(moved.ok()) << moved.message();
  }
  EXPECT_EQ(std::memcmp(to.data() + 4096, from.data() + 64, 65536), 0);
  EXPECT_EQ(to[4095], std::byte{0});
  EXPECT_EQ(to[4096 + 65536], std::byte{0});
  EXPECT_EQ(client().loop_back(to.data(), from.data() + kBytes - 8, 64).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(client().status().ok());
}

INSTANTIATE_TEST_SUITE_P(Link, MemoryContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
