#include "client/hostmem/small_pieces.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

constexpr size_t kUnit = SmallPieces::kMostAlignment;
constexpr uint64_t kFirst = 0x10000, kSecond = 0x90000;

TEST(SmallPieces, LieInTheirChunks) {
  SmallPieces pieces;
  EXPECT_EQ(pieces.take(1), 0u);
  pieces.add({kFirst, 4 * kUnit});
  EXPECT_EQ(pieces.take(kUnit), kFirst);
  EXPECT_EQ(pieces.take(2 * kUnit - 1), kFirst + kUnit);
  EXPECT_EQ(pieces.take(2 * kUnit), 0u);
  EXPECT_EQ(pieces.take(kUnit), kFirst + 3 * kUnit);
  EXPECT_EQ(pieces.take(1), 0u);
  EXPECT_TRUE(pieces.has(kFirst + kUnit));
  EXPECT_FALSE(pieces.has(kFirst + 2 * kUnit));
}

TEST(SmallPieces, AreAlignedAsTheirSizeDemands) {
  SmallPieces pieces;
  pieces.add({kFirst, 4 * kUnit});
  EXPECT_EQ(pieces.take(1), kFirst);
  EXPECT_EQ(pieces.take(64), kFirst + 64);
  EXPECT_EQ(pieces.take(100), kFirst + 128);
  EXPECT_EQ(pieces.take(kUnit + 4), kFirst + kUnit);
  EXPECT_EQ(pieces.take(130), kFirst + 256);
  EXPECT_EQ(pieces.take(256), kFirst + 2 * kUnit + 256);
  EXPECT_EQ(pieces.take(192), kFirst + 3 * kUnit);
  EXPECT_EQ(pieces.take(512), 0u);
}

TEST(SmallPieces, ThousandsShareLines) {
  constexpr size_t kAlone = SmallPieces::kMostAlone, kLine = SmallPieces::kLineBytes;
  SmallPieces pieces;
  pieces.add({kFirst, kAlone * kLine + 4 * kUnit});
  uint64_t last = 0;
  for (size_t i = 0; i < kAlone; ++i) last = pieces.take(4);
  EXPECT_EQ(last, kFirst + (kAlone - 1) * kLine);
  EXPECT_EQ(pieces.take(4), last + kLine);
  EXPECT_EQ(pieces.take(8), last + kLine + 16);
  EXPECT_EQ(pieces.take(17), last + kLine + 32);
  EXPECT_EQ(pieces.take(40), last + 2 * kLine) << "aligned to 64";
  EXPECT_EQ(pieces.take(16), last + 2 * kLine + 48) << "the hole behind it";
  EXPECT_FALSE(pieces.give_back(last + kLine + 16));
  EXPECT_EQ(pieces.take(1), last + kLine + 16);
  EXPECT_EQ(pieces.take(kUnit), kFirst + kAlone * kLine + kUnit);
  // With fewer pieces, each piece gets a cache line of its own again.
  for (uint64_t at = kFirst; at <= kFirst + 8 * kLine; at += kLine) {
    EXPECT_FALSE(pieces.give_back(at));
  }
  EXPECT_EQ(pieces.take(1) % kLine, 0u);
}

TEST(SmallPieces, HolesJoinAndTheSmallestThatFitsIsUsed) {
  SmallPieces pieces;
  pieces.add({kFirst, 8 * kUnit});
  std::vector<uint64_t> all;
  for (int i = 0; i < 8; ++i) all.push_back(pieces.take(kUnit));
  for (const int i : {1, 3, 2, 6}) EXPECT_FALSE(pieces.give_back(all[i]));
  EXPECT_EQ(pieces.take(kUnit), all[6]);
  EXPECT_EQ(pieces.take(3 * kUnit), all[1]);
  EXPECT_EQ(pieces.take(1), 0u);
}

TEST(SmallPieces, AHoleThatIsNotAlignedHidesNoneOfThatSize) {
  constexpr size_t kLine = SmallPieces::kLineBytes;
  SmallPieces pieces;
  pieces.add({kFirst, 8 * kLine});
  for (int i = 0; i < 8; ++i) EXPECT_NE(pieces.take(kLine), 0u);
  for (const int line : {1, 2, 4, 5}) EXPECT_FALSE(pieces.give_back(kFirst + line * kLine));
  EXPECT_EQ(pieces.take(2 * kLine), kFirst + 4 * kLine);
}

TEST(SmallPieces, AChunkEndsWithItsLastPiece) {
  SmallPieces pieces;
  pieces.add({kFirst, 2 * kUnit});
  pieces.add({kSecond, kUnit});
  EXPECT_EQ(pieces.bytes(), 3 * kUnit);
  const uint64_t one = pieces.take(kUnit), two = pieces.take(kUnit), three = pieces.take(kUnit);
  EXPECT_EQ(one, kSecond) << "the smaller hole";
  EXPECT_FALSE(pieces.give_back(two));
  const auto ended = pieces.give_back(three);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->base, kFirst);
  EXPECT_EQ(ended->bytes, 2 * kUnit);
  EXPECT_EQ(pieces.bytes(), kUnit);
  EXPECT_EQ(pieces.take(1), 0u);
  EXPECT_FALSE(pieces.give_back(kFirst)) << "not a piece";
  EXPECT_TRUE(pieces.give_back(one));
}

}  // namespace
}  // namespace rcuda::client
