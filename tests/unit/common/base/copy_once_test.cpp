// Copies into memory that other threads poll and change.
#include "common/base/copy_once.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda {
namespace {

TEST(CopyOnceTest, CopiesAnyRange) {
  std::vector<std::byte> from(200), to(200);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i + 1);
  for (size_t at = 0; at < 9; ++at) {
    for (size_t bytes = 0; bytes < 70; ++bytes) {
      for (size_t source = 0; source < 4; ++source) {
        std::fill(to.begin(), to.end(), std::byte{0});
        copy_once(to.data() + at, from.data() + source, bytes);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool copied = i >= at && i < at + bytes;
          ASSERT_EQ(to[i], copied ? from[source + i - at] : std::byte{0}) << at << ' ' << bytes;
        }
      }
    }
  }
}

// memcpy() fails this test: the word's second store of the same bytes undoes the other thread's
// change.
TEST(CopyOnceTest, AChangeByAThreadThatSawTheBytesStays) {
  constexpr uint32_t kRounds = 300'000;
  alignas(8) uint32_t word = 0;
  std::atomic<uint32_t> copied{0}, answered{0};
  std::thread other([&] {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != round) {
        if (copied.load(std::memory_order_acquire) >= round) break;
      }
      __atomic_store_n(&word, 0u, __ATOMIC_RELEASE);
      answered.store(round, std::memory_order_release);
    }
  });
  volatile size_t bytes = sizeof word;  // not known to the compiler
  uint32_t lost = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    copy_once(reinterpret_cast<std::byte*>(&word), reinterpret_cast<const std::byte*>(&round),
              bytes);
    copied.store(round, std::memory_order_release);
    while (answered.load(std::memory_order_acquire) < round) {
    }
    lost += __atomic_load_n(&word, __ATOMIC_ACQUIRE) != 0;
  }
  other.join();
  EXPECT_EQ(lost, 0u);
}

}  // namespace
}  // namespace rcuda
