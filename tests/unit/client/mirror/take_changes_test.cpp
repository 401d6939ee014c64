#include "client/mirror/take_changes.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

using Bytes = std::vector<std::byte>;

class TakeChangesTest
    : public ::testing::TestWithParam<bool (*)(std::byte*, std::byte*, const std::byte*, size_t)> {
};

TEST_P(TakeChangesTest, OnlyBytesThatDifferAreTaken) {
  std::mt19937 random(1);
  const auto fill = [&](Bytes* bytes) {
    for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random());
  };
  for (int round = 0; round < 2000; ++round) {
    const size_t bytes = 1 + random() % 300, unaligned = random() % 8;
    Bytes known(bytes), all(unaligned + bytes + 8);
    fill(&known);
    fill(&all);
    Bytes there = known;
    const bool any = round % 5 != 0;
    for (size_t i = 0; any && i < bytes; ++i) {
      if (random() % 3 == 0) there[i] ^= static_cast<std::byte>(1u << random() % 8);
      if (round % 2 != 0 && i % 16 < 8) there[i] = ~known[i];
    }
    Bytes expected = all;
    for (size_t i = 0; i < bytes; ++i) {
      if (there[i] != known[i]) expected[unaligned + i] = there[i];
    }
    const bool differ = there != known;
    EXPECT_EQ(GetParam()(all.data() + unaligned, known.data(), there.data(), bytes), differ);
    EXPECT_EQ(all, expected);
    EXPECT_EQ(known, there);
  }
}

#if !defined(__SANITIZE_THREAD__)  // the races are those of an application
// While changes are taken, one thread stores to neighbouring words, and one reads the taken words.
TEST_P(TakeChangesTest, OtherThreadsLoseNothingAndSeeWholeWords) {
  constexpr uint32_t kRounds = 300'000;
  alignas(64) uint32_t here[16] = {255};
  uint32_t known[16] = {255}, there[16];
  std::atomic<bool> over{false};
  uint32_t lost = 0, torn = 0;
  std::thread writer([&] {
    auto* const beside = reinterpret_cast<volatile uint32_t*>(here) + 1;
    for (uint32_t i = 0; !over; ++i) {
      *beside = i;
      if (*beside != i) ++lost;
    }
  });
  std::thread reader([&] {
    auto* const word = reinterpret_cast<volatile uint32_t*>(here);
    while (!over) {
      const uint32_t seen = *word;
      if (seen != 255 && seen != 256) ++torn;
    }
  });
  for (uint32_t i = 0; i < kRounds; ++i) {
    std::memcpy(there, known, sizeof there);
    there[0] = known[0] == 255 ? 256 : 255;  // differ in two bytes
    there[2] = i;
    GetParam()(reinterpret_cast<std::byte*>(here), reinterpret_cast<std::byte*>(known),
               reinterpret_cast<const std::byte*>(there), sizeof here);
  }
  over = true;
  writer.join();
  reader.join();
  EXPECT_EQ(lost, 0u);
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(here[2], kRounds - 1);
}
#endif

INSTANTIATE_TEST_SUITE_P(, TakeChangesTest, ::testing::Values(take_changes, take_changes_by_word));

}  // namespace
}  // namespace rcuda::client
