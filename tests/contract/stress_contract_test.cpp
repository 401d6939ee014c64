// Load: connection storms, and a random mix of commands and transfers with every byte checked.
#include <mutex>
#include <random>
#include <thread>

#include "common/wire/ring.h"
#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Bytes;
using transport::Link;
using transport::Region;
using transport::Wake;

class StressContract : public LinkContract {};

TEST_P(StressContract, ManyPairsConnectAndEndAtOnce) {
  if (faulty()) GTEST_SKIP() << "connecting is not decorated";
  constexpr int kThreads = 8;
  const int laps = std::max(rounds(40, false) / kThreads, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int lap = 0; lap < laps; ++lap) {
        Result<LinkPair> pair =
            make_link_pair(medium(), {.window_bytes = 64 << 10}, {.window_bytes = 64 << 10});
        ASSERT_TRUE(pair.ok()) << pair.status().message();
        Link& server = *pair->server;
        const uint64_t word = 1000 * t + lap + 1;
        ASSERT_TRUE(put_word(*pair->client, 8, word).ok());
        ASSERT_TRUE(server.wait([&] { return load(server, 8) == word; }, soon()).ok());
        if (lap % 2 == 0) pair->server.reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One thread sends frames through the ring, another receives them. Meanwhile other threads write
// and read regions that come and go. The contents are functions of counters, so the test keeps no
// copies.
TEST_P(StressContract, CommandsAndTransfersMixed) {
  connect({.window_bytes = 64 << 10}, {.window_bytes = 1 << 20});
  const wire::RingLayout layout{.ring_offset = 4096,
                                .ring_bytes = 256 << 10,
                                .want_offset = 0,
                                .consumed_offset = 0,
                                .max_frame_bytes = 16 << 10};
  ASSERT_TRUE(layout.check(1 << 20, 64 << 10).ok());
  const int frames = rounds(20'000, faulty());
  const int transfers = rounds(400, faulty());

  std::thread commands([&] {
    wire::RingWriter writer(client(), layout);
    std::mt19937_64 random(1);
    std::vector<std::byte> bytes;
    for (int i = 0; i < frames; ++i) {
      bytes.resize(1 + random() % (i % 50 == 0 ? layout.max_frame_bytes : 200));
      fill_pattern(bytes, i);
      const size_t cut = random() % bytes.size();
      const Bytes all(bytes);
      const Status status = writer.append(all.first(cut), all.subspan(cut), Wake::kYes, soon());
      ASSERT_TRUE(status.ok()) << status.message();
    }
  });
  std::thread executor([&] {
    wire::RingReader reader(server(), layout);
    for (int i = 0; i < frames;) {
      const Result<Bytes> frame = reader.try_next();
      ASSERT_TRUE(frame.ok()) << frame.status().message();
      if (frame->empty()) {
        const Status status = server().wait([&] { return reader.pending(); }, soon());
        ASSERT_TRUE(status.ok()) << status.message();
        continue;
      }
      ASSERT_TRUE(has_pattern(*frame, i)) << "frame " << i;
      ++i;
    }
  });
  std::vector<std::thread> movers;
  for (int m = 0; m < 2; ++m) {
    movers.emplace_back([&, m] {
      std::mt19937_64 random(100 + m);
      SharedBlock block(3 << 20);
      std::vector<std::byte> local(block.bytes.size());
      Result<Region> region = client().expose(block.bytes.data(), local.size(), block.fd);
      ASSERT_TRUE(region.ok());
      for (int i = 0; i < transfers; ++i) {
        const size_t most = i % 10 == 0 ? local.size() : 20'000;
        const size_t bytes = 1 + random() % most;
        const size_t offset = random() % (local.size() - bytes + 1);
        const uint64_t seed = random();
        const std::span<std::byte> there = block.bytes.subspan(offset, bytes);
        const std::span<std::byte> here =
            std::span(local).subspan(random() % (local.size() - bytes + 1), bytes);
        if (i % 2 == 0) {
          fill_pattern(here, seed);
          ASSERT_TRUE(write_and_wait(server(), region->id, offset, here).ok());
          ASSERT_TRUE(has_pattern(there, seed)) << "write " << i;
        } else {
          fill_pattern(there, seed);
          ASSERT_TRUE(read_and_wait(server(), region->id, offset, here).ok());
          ASSERT_TRUE(has_pattern(here, seed)) << "read " << i;
        }
        if (i % 20 == 19) {
          ASSERT_TRUE(client().unexpose(region->id).ok());
          region = client().expose(block.bytes.data(), local.size(), block.fd);
          ASSERT_TRUE(region.ok());
        }
      }
    });
  }
  commands.join();
  executor.join();
  for (std::thread& thread : movers) thread.join();
  EXPECT_TRUE(client().status().ok()) << client().status().message();
  EXPECT_TRUE(server().status().ok()) << server().status().message();
}

// Over verbs, unexpose() waits for the peer's answer.
TEST_P(StressContract, ALinkEndsWhileItsPeerWithdrawsRegions) {
  constexpr size_t kBytes = 4096;
  constexpr int kThreads = 4;
  const int laps = rounds(100, faulty());
  for (int lap = 0; lap < laps; ++lap) {
    connect({.window_bytes = 64 << 10}, {.window_bytes = 64 << 10});
    std::atomic<int> withdrawn{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        std::vector<std::byte> bytes(kBytes);
        Result<Region> region = server().expose(bytes.data(), bytes.size());
        while (region && server().unexpose(region->id).ok()) {
          ++withdrawn;
          region = server().expose(bytes.data(), bytes.size());
        }
      });
    }
    while (withdrawn < kThreads * 4) std::this_thread::yield();
    client_.reset();
    for (std::thread& thread : threads) thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Link, StressContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
