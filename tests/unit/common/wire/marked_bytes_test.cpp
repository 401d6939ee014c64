#include "common/wire/marked_bytes.h"

#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::wire {
namespace {

using Bytes = std::vector<std::byte>;

TEST(MarkedBytesTest, OnlyBytesThatDifferAreCopied) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const size_t bytes = 1 + random() % 40;
    Bytes before(bytes), now, to(bytes);
    for (size_t i = 0; i < bytes; ++i) before[i] = static_cast<std::byte>(random());
    now = before;
    // Changes single bits, to test that each bit is found, or whole words.
    for (size_t i = 0; i < bytes; ++i) {
      if (random() % 3 == 0) now[i] ^= static_cast<std::byte>(1u << random() % 8);
      if (round % 2 != 0 && i % 8 < 4) now[i] ^= std::byte{0xff};
      to[i] = static_cast<std::byte>(random());
    }
    std::vector<uint8_t> mask(mask_bytes(bytes), 0xaa);
    mark_differences(now.data(), before.data(), bytes, mask.data());
    Bytes expected = to;
    for (size_t i = 0; i < bytes; ++i) {
      EXPECT_EQ((mask[i / 8] >> i % 8 & 1) != 0, now[i] != before[i]) << i << " of " << bytes;
      if (now[i] != before[i]) expected[i] = now[i];
    }
    Bytes shared = to;
    copy_marked(to.data(), now.data(), bytes, mask.data());
    EXPECT_EQ(to, expected);
    write_marked(shared.data(), now.data(), bytes, mask.data());
    EXPECT_EQ(shared, expected);
  }
}

// Another thread must see each written word as a whole, and no change of the neighbouring words.
void expect_whole_words(size_t bytes, size_t unaligned) {
  alignas(8) uint32_t memory[4] = {};
  uint32_t* const words = memory + unaligned / 4;
  words[0] = 255;
  std::atomic<bool> over{false};
  std::thread other([&] {
    auto* const beside = reinterpret_cast<volatile uint32_t*>(words) + 1;
    for (uint32_t i = 0; !over; ++i) *beside = i;
    *beside = 9;
  });
  std::thread reader([&] {
    auto* const word = reinterpret_cast<volatile uint32_t*>(words);
    for (uint32_t seen = 255; !over; seen = *word) {
      EXPECT_TRUE(seen == 255 || seen == 256) << seen;
      if (seen != 255 && seen != 256) break;
    }
  });
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t next[2] = {i % 2 == 0 ? 256u : 255u, 1};
    const uint8_t mask = 3;  // both bytes in which they differ
    write_marked(reinterpret_cast<std::byte*>(words), reinterpret_cast<const std::byte*>(next),
                 bytes, &mask);
  }
  over = true;
  other.join();
  reader.join();
  EXPECT_EQ(words[1], 9u);
}

#if !defined(__SANITIZE_THREAD__)  // the other threads play a GPU, whose races are intended
TEST(MarkedBytesTest, WordsThatOthersReadAreWrittenAtOnce) {
  expect_whole_words(8, 0);
  expect_whole_words(8, 4);
  expect_whole_words(4, 0);
  expect_whole_words(7, 4);
}
#endif

TEST(MarkedBytesTest, MarksBehindTheLastByteAreIgnored) {
  Bytes from(16, std::byte{1}), to(16);
  const uint8_t mask[] = {0xff, 0xff};
  copy_marked(to.data(), from.data(), 13, mask);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(to[i], std::byte{i < 13}) << i;
}

TEST(MarkedBytesTest, APartHasAllMarks) {
  const auto part_of = [](size_t bytes, const std::vector<uint8_t>& mask) {
    const MarkedPart part = marked_part(bytes, mask.data());
    return std::pair(part.at, part.bytes);
  };
  using Part = std::pair<size_t, size_t>;
  EXPECT_EQ(part_of(32, {0, 0x10, 0, 0}), Part(8, 8));
  EXPECT_EQ(part_of(32, {0, 0x10, 0x80, 0}), Part(8, 16));
  EXPECT_EQ(part_of(27, {1, 0, 0, 4}), Part(0, 27));
  EXPECT_EQ(part_of(27, {0, 0, 0, 4}), Part(24, 3));
  EXPECT_EQ(part_of(27, {0, 0, 0, 0}).second, 0u);
}

TEST(MarkedBytesTest, AllIsEveryByte) {
  for (size_t bytes = 1; bytes < 20; ++bytes) {
    Bytes from(bytes, std::byte{1}), to(bytes);
    std::vector<uint8_t> mask(mask_bytes(bytes));
    mark_all(bytes, mask.data());
    copy_marked(to.data(), from.data(), bytes, mask.data());
    EXPECT_EQ(to, from);
    EXPECT_EQ(mask.back() >> ((bytes - 1) % 8), 1);  // no mark after the last byte
  }
}

}  // namespace
}  // namespace rcuda::wire
