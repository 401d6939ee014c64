// Order: after which bytes the peer sees a put or a write.
#include <array>
#include <atomic>
#include <iterator>
#include <thread>
#include <utility>

#include <sys/mman.h>

#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Region;
using transport::RegionId;

class OrderContract : public LinkContract {};

TEST_P(OrderContract, APutAfterATransferIsSeenAfterItsData) {
  connect();
  SharedBlock block(1 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(block.bytes.size());
  const int count = rounds(200, faulty());
  // Makes the order known to ThreadSanitizer, which cannot see it through two mappings.
  std::atomic<int> finished{0};
  for (int i = 1; i <= count; ++i) {
    std::memset(bytes.data(), i % 251, bytes.size());
    server().write(region->id, 0, bytes.data(), bytes.size(), [&, i](const Status& status) {
      ASSERT_TRUE(status.ok());
      ASSERT_TRUE(put_word(server(), 0, i).ok());
      finished = i;
    });
    ASSERT_TRUE(client().wait([&] { return load(client(), 0) == uint64_t(i); }, soon()).ok());
    while (finished != i) std::this_thread::yield();
    ASSERT_EQ(block.bytes.front(), static_cast<std::byte>(i % 251));
    ASSERT_EQ(block.bytes.back(), static_cast<std::byte>(i % 251));
  }
}

// As above, but the put does not wait for the end of a transfer.
TEST_P(OrderContract, APutAfterAPutIntoARegionIsSeenAfterItsBytes) {
  connect();
  SharedBlock block(1 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(transport::kMaxRegionPut + 1);
  const auto put = [&](RegionId id, uint64_t offset, size_t count) {
    return server().put_region(id, offset, std::span(bytes).first(count)).code();
  };
  if (!traits().has_region_puts) {
    EXPECT_EQ(put(region->id, 0, 8), Code::kUnsupported);
    return;
  }
  const size_t sizes[] = {1, 7, 4096, 16'385, transport::kMaxRegionPut};
  const int count = rounds(200, faulty());
  for (int i = 1; i <= count; ++i) {
    const size_t size = sizes[static_cast<size_t>(i) % std::size(sizes)];
    const uint64_t offset = static_cast<uint64_t>(i) % 13;
    std::memset(bytes.data(), i % 251, bytes.size());
    ASSERT_EQ(put(region->id, offset, size), Code::kOk);
    std::memset(bytes.data(), 0xff, bytes.size());  // put_region() has copied them
    ASSERT_TRUE(put_word(server(), 0, i).ok());
    ASSERT_TRUE(client().wait([&] { return load(client(), 0) == uint64_t(i); }, soon()).ok());
    ASSERT_EQ(block.bytes[offset], static_cast<std::byte>(i % 251));
    ASSERT_EQ(block.bytes[offset + size - 1], static_cast<std::byte>(i % 251));
    ASSERT_NE(block.bytes[offset + size], static_cast<std::byte>(i % 251));
  }
  // The Link does not access the memory of a withdrawn region, and continues.
  ASSERT_TRUE(client().unexpose(region->id).ok());
  ::mprotect(block.bytes.data(), block.bytes.size(), PROT_NONE);
  ASSERT_EQ(put(region->id, 0, 4096), Code::kOk);
  ASSERT_TRUE(put_word(server(), 0, 7777).ok());
  EXPECT_TRUE(client().wait([&] { return load(client(), 0) == 7777; }, soon()).ok());
  ::mprotect(block.bytes.data(), block.bytes.size(), PROT_READ | PROT_WRITE);
}

TEST_P(OrderContract, TransfersAfterAPutIntoARegionHappenAfterIt) {
  connect();
  if (!traits().has_region_puts) return;
  SharedBlock block(1 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(transport::kMaxRegionPut);
  std::vector<std::byte> other(bytes.size() * 2);
  const int count = rounds(200, faulty());
  for (int i = 1; i <= count; ++i) {
    // A read returns the bytes of the last put.
    std::memset(bytes.data(), i % 251 + 1, bytes.size());
    ASSERT_TRUE(server().put_region(region->id, 0, bytes).ok());
    Pending read;
    server().read(region->id, 0, other.data(), bytes.size(), read.begin());
    ASSERT_TRUE(read.wait());
    ASSERT_EQ(other[0], bytes[0]);
    ASSERT_EQ(other[bytes.size() - 1], bytes[0]);
    // A later write replaces the bytes of a put.
    std::memset(other.data(), 0xff, other.size());
    ASSERT_TRUE(server().put_region(region->id, 0, bytes).ok());
    ASSERT_TRUE(write_and_wait(server(), region->id, 0, other).ok());
    ASSERT_TRUE(put_word(server(), 0, i).ok());
    ASSERT_TRUE(client().wait([&] { return load(client(), 0) == uint64_t(i); }, soon()).ok());
    ASSERT_EQ(block.bytes[0], std::byte{0xff});
    ASSERT_EQ(block.bytes[bytes.size() - 1], std::byte{0xff});
  }
}

TEST_P(OrderContract, APutAfterAWriteInOrderIsSeenAfterItsBytes) {
  connect();
  constexpr size_t kSizes[] = {1, 4097, 65'537, 300'001, (1 << 20) + 3, 4 << 20};
  SharedBlock block(8 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(4 << 20);
  Pending pending;
  const auto write = [&](RegionId id, uint64_t offset, size_t count) {
    server().write_in_order(id, offset, bytes.data(), count, pending.begin());
  };
  if (!traits().orders_writes) {
    write(region->id, 0, 8);
    ASSERT_TRUE(pending.wait());
    EXPECT_EQ(pending.last_error().code(), Code::kUnsupported);
    return;
  }
  const int count = rounds(200, faulty());
  for (int i = 1; i <= count; ++i) {
    const size_t size = kSizes[static_cast<size_t>(i) % std::size(kSizes)];
    const uint64_t offset = static_cast<uint64_t>(i) % 13;
    fill_pattern(std::span(bytes).first(size), i);
    bool is_lent = i % 4 < 2;  // the Link may read the bytes until they are taken back
    if (is_lent) server().lend(bytes.data(), bytes.size());
    write(region->id, offset, size);
    if (i % 3 == 0) {  // a put meanwhile is in order, too
      std::array<std::byte, 64> few{};
      ASSERT_TRUE(server().put_region(region->id, block.bytes.size() - 64, few).ok());
    }
    if (i % 2 == 0) {  // the bytes have been sent, and the caller may change its memory
      ASSERT_TRUE(pending.wait());
      if (std::exchange(is_lent, false)) server().take_back(bytes.data(), bytes.size());
      std::memset(bytes.data(), 0xff, size);
    }
    ASSERT_TRUE(put_word(server(), 0, i).ok());
    ASSERT_TRUE(client().wait([&] { return load(client(), 0) == uint64_t(i); }, soon()).ok());
    ASSERT_TRUE(has_pattern(block.bytes.subspan(offset, size), i));
    ASSERT_TRUE(pending.wait());
    if (is_lent) server().take_back(bytes.data(), bytes.size());
  }
  EXPECT_TRUE(pending.last_error().ok());
  // The Link does not access the memory of a withdrawn region, and continues.
  ASSERT_TRUE(client().unexpose(region->id).ok());
  ::mprotect(block.bytes.data(), block.bytes.size(), PROT_NONE);
  write(region->id, 0, 300'001);
  ASSERT_TRUE(put_word(server(), 0, 7777).ok());
  EXPECT_TRUE(client().wait([&] { return load(client(), 0) == 7777; }, soon()).ok());
  ::mprotect(block.bytes.data(), block.bytes.size(), PROT_READ | PROT_WRITE);
}

TEST_P(OrderContract, TransfersAfterAWriteInOrderHappenAfterIt) {
  connect();
  if (!traits().orders_writes) return;
  SharedBlock block(2 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(block.bytes.size()), other(block.bytes.size());
  const int count = rounds(100, faulty());
  for (int i = 1; i <= count; ++i) {
    fill_pattern(bytes, i);
    Pending pending;
    server().write_in_order(region->id, 0, bytes.data(), bytes.size(), pending.begin());
    ASSERT_TRUE(read_and_wait(server(), region->id, 0, other).ok());
    ASSERT_TRUE(has_pattern(other, i));
    ASSERT_TRUE(pending.wait());
  }
}

// After several writes of any size to the same place, the peer sees the last write's bytes.
TEST_P(OrderContract, WritesInOrderReplaceEachOther) {
  connect();
  if (!traits().orders_writes) return;
  SharedBlock block(2 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::vector<std::byte>> sources;
  for (const size_t size : {2u << 20, 70'000u, 1u << 20, 300'000u}) sources.emplace_back(size);
  const int count = rounds(100, faulty());
  for (int i = 1; i <= count; ++i) {
    Pending pending;
    for (size_t j = 0; j < sources.size(); ++j) {
      fill_pattern(sources[j], 10 * i + j);
      server().write_in_order(region->id, 0, sources[j].data(), sources[j].size(), pending.begin());
      server().write_in_order(region->id, sources[j].size() - 1, sources[j].data(), 1,
                              pending.begin());
    }
    ASSERT_TRUE(put_word(server(), 0, i).ok());
    ASSERT_TRUE(client().wait([&] { return load(client(), 0) == uint64_t(i); }, soon()).ok());
    const size_t last = sources.back().size();
    ASSERT_TRUE(has_pattern(block.bytes.first(last - 1), 10 * i + 3));
    ASSERT_EQ(block.bytes[last - 1], sources.back()[0]);
    ASSERT_EQ(block.bytes[last], sources[2][last]);
    ASSERT_TRUE(pending.wait());
  }
}

// Puts, writes in order and transfers of several threads wait for each other at the peer, but never
// in a cycle.
TEST_P(OrderContract, ManyThreadsInAnyOrder) {
  connect();
  if (!traits().orders_writes) return;
  constexpr size_t kThreads = 6, kPart = 1 << 20;
  SharedBlock block(kThreads * kPart);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  const int count = rounds(150, faulty());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t offset = t * kPart;
      std::vector<std::byte> bytes(kPart);
      server().lend(bytes.data(), bytes.size());  // changed only after the client has received them
      for (int i = 1; i <= count; ++i) {
        const size_t size = i % 2 == 0 ? kPart : 70'000;
        const std::span<std::byte> some = std::span(bytes).first(t % 3 == 1 ? 5000 : size);
        fill_pattern(some, i * kThreads + t);
        Pending pending;
        if (t % 3 == 0) {
          server().write_in_order(region->id, offset, some.data(), some.size(), pending.begin());
        } else if (t % 3 == 1) {
          ASSERT_TRUE(server().put_region(region->id, offset, some).ok());
        } else {
          ASSERT_TRUE(write_and_wait(server(), region->id, offset, some).ok());
        }
        ASSERT_TRUE(put_word(server(), 8 * t, i).ok());
        ASSERT_TRUE(
            client().wait([&] { return load(client(), 8 * t) == uint64_t(i); }, soon()).ok());
        ASSERT_TRUE(has_pattern(block.bytes.subspan(offset, some.size()), i * kThreads + t));
        ASSERT_TRUE(pending.wait());
      }
      server().take_back(bytes.data(), bytes.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// If the Link ends during a write in order, the write still reports its end. Then the caller may
// free its memory.
TEST_P(OrderContract, AWriteInOrderEndsWithTheLink) {
  connect();
  if (!traits().orders_writes) return;
  SharedBlock block(4 << 20);
  const Result<Region> region = client().expose(block.bytes.data(), block.bytes.size(), block.fd);
  ASSERT_TRUE(region.ok());
  std::vector<std::byte> bytes(block.bytes.size());
  Pending pending;
  const auto write = [&] {
    server().write_in_order(region->id, 0, bytes.data(), bytes.size(), pending.begin());
  };
  for (int i = 0; i < 20; ++i) write();
  client_.reset();
  EXPECT_EQ(server().wait([] { return false; }, soon()).code(), Code::kUnavailable);
  write();
  ASSERT_TRUE(pending.wait());
  EXPECT_EQ(pending.last_error().code(), Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Link, OrderContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
