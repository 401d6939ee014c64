#include "common/wire/codec.h"

#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::wire {
namespace {

// A copy that begins on an 8-byte boundary, like the worker's copy of a command.
std::vector<uint64_t> aligned(std::span<const std::byte> body) {
  std::vector<uint64_t> copy((body.size() + 7) / 8);
  if (!body.empty()) std::memcpy(copy.data(), body.data(), body.size());
  return copy;
}

std::span<const std::byte> bytes(const std::vector<uint64_t>& words, size_t size) {
  return std::as_bytes(std::span(words)).first(size);
}

enum class Colour : uint32_t { kRed = 1, kBlue = 7 };
struct Pair {
  uint32_t a;
  uint64_t b;
};

TEST(CodecTest, BringsBackWhatWasPutIn) {
  Encoder in;
  const std::array<uint32_t, 3> numbers = {1, 2, 3};
  in.value<uint8_t>(200);
  in.value<uint64_t>(1ull << 40);
  in.value(Colour::kBlue);
  in.array(numbers.data(), numbers.size());
  in.string("kernel");
  in.value(Pair{4, 5});
  in.string(nullptr);
  in.array<uint64_t>(nullptr, 0);
  in.string("");
  ASSERT_TRUE(in.ok());

  const auto copy = aligned(in.body());
  Decoder out(bytes(copy, in.size()));
  EXPECT_EQ(out.value<uint8_t>(), 200);
  EXPECT_EQ(out.value<uint64_t>(), 1ull << 40);
  EXPECT_EQ(out.value<Colour>(), Colour::kBlue);
  const auto back = out.array<uint32_t>();
  EXPECT_TRUE(std::equal(back.begin(), back.end(), numbers.begin(), numbers.end()));
  EXPECT_STREQ(out.string(), "kernel");
  EXPECT_EQ(out.value<Pair>().b, 5u);
  EXPECT_EQ(out.string(), nullptr);
  EXPECT_TRUE(out.array<uint64_t>().empty());
  EXPECT_STREQ(out.string(), "");
  EXPECT_TRUE(out.complete());
}

TEST(CodecTest, LayoutIsWhatOtherVersionsExpect) {
  Encoder in;
  in.value<uint16_t>(0x1122);
  in.value<uint32_t>(0x33445566);
  const std::array<uint8_t, 2> tail = {0xaa, 0xbb};
  in.array(tail.data(), tail.size());
  const std::vector<uint8_t> golden = {0x22, 0x11, 0, 0, 0x66, 0x55, 0x44, 0x33, 2,
                                       0,    0,    0, 0, 0,    0,    0,    0xaa, 0xbb};
  ASSERT_EQ(in.size(), golden.size());
  EXPECT_EQ(std::memcmp(in.body().data(), golden.data(), golden.size()), 0);
}

TEST(CodecTest, ArraysBeginOnAnEightByteBoundary) {
  Encoder in;
  in.value<uint8_t>(1);
  const uint64_t number = 42;
  in.array(&number, 1);
  const auto copy = aligned(in.body());
  Decoder out(bytes(copy, in.size()));
  (void)out.value<uint8_t>();
  const auto back = out.array<uint64_t>();
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(back.data()) % 8, 0u);
  EXPECT_EQ(back[0], 42u);
}

TEST(CodecTest, EncoderGrowsToItsLimitAndNoFurther) {
  Encoder in(4096);
  std::vector<uint8_t> block(1000, 7);
  for (int i = 0; i < 4; ++i) in.array(block.data(), block.size());
  EXPECT_TRUE(in.ok());
  EXPECT_LE(in.size(), 4096u);
  in.array(block.data(), block.size());
  EXPECT_FALSE(in.ok());
  EXPECT_LE(in.size(), 4096u);
  in.value<uint8_t>(1);
  EXPECT_FALSE(in.ok()) << "the first failure sticks";
}

TEST(CodecTest, EncoderTakesExactlyItsLimit) {
  Encoder in(16);
  in.value<uint64_t>(1);
  in.value<uint64_t>(2);
  EXPECT_TRUE(in.ok());
  in.value<uint8_t>(3);
  EXPECT_FALSE(in.ok());
}

TEST(CodecTest, EncoderRefusesCountsThatOverflow) {
  Encoder in;
  const uint64_t number = 1;
  in.array(&number, SIZE_MAX / 4);
  EXPECT_FALSE(in.ok());
  Encoder other;
  other.array(reinterpret_cast<const uint8_t*>(&number), 0xffff'ffffull);
  EXPECT_FALSE(other.ok());
}

TEST(CodecTest, DecoderRefusesEveryTruncation) {
  Encoder in;
  const std::array<uint64_t, 4> numbers = {1, 2, 3, 4};
  in.value<uint32_t>(9);
  in.array(numbers.data(), numbers.size());
  in.string("name");
  const auto copy = aligned(in.body());
  for (size_t size = 0; size < in.size(); ++size) {
    Decoder out(bytes(copy, size));
    (void)out.value<uint32_t>();
    (void)out.array<uint64_t>();
    (void)out.string();
    EXPECT_FALSE(out.complete()) << size;
  }
}

TEST(CodecTest, DecoderRefusesWhatIsLeftOver) {
  const std::vector<uint64_t> words = {1, 2};
  Decoder out(bytes(words, 16));
  (void)out.value<uint64_t>();
  EXPECT_TRUE(out.ok());
  EXPECT_FALSE(out.complete());
}

TEST(CodecTest, DecoderRefusesHostileCounts) {
  for (const uint32_t count : {2u, 3u, 0x1000'0000u, 0x2000'0000u, 0x8000'0000u, 0xffff'ffffu}) {
    const std::vector<uint64_t> words = {count, 7};
    Decoder out(bytes(words, 16));
    EXPECT_TRUE(out.array<uint64_t>().empty()) << count;
    EXPECT_FALSE(out.ok()) << count;
    EXPECT_EQ(out.value<uint32_t>(), 0u) << "nothing is read after a failure";
  }
}

TEST(CodecTest, StringsMustEndWithinTheirLength) {
  const std::vector<uint64_t> unterminated = {4, 0x6161616161616161ull};
  Decoder out(bytes(unterminated, 12));
  EXPECT_EQ(out.string(), nullptr);
  EXPECT_FALSE(out.ok());

  const std::vector<uint64_t> empty = {0};
  Decoder nothing(bytes(empty, 8));
  EXPECT_EQ(nothing.string(), nullptr);
  EXPECT_FALSE(nothing.ok()) << "even the empty string has a terminator";
}

TEST(CodecTest, RejectSticks) {
  const std::vector<uint64_t> words = {5};
  Decoder out(bytes(words, 8));
  EXPECT_EQ(out.value<uint64_t>(), 5u);
  out.reject();
  EXPECT_FALSE(out.complete());
}

// Random bodies and random reads: every read is in bounds (AddressSanitizer checks), and a body
// that a decoder accepts re-encodes to the same bytes.
TEST(CodecTest, RandomBodiesNeverLeaveTheirBounds) {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t size = random() % 64;
    std::vector<uint64_t> words(8);
    for (uint64_t& word : words) word = random() % 3 == 0 ? random() : random() % 6;
    // An exact heap block, so that a read beyond the end is out of bounds.
    auto body = std::make_unique<uint64_t[]>((size + 7) / 8);
    std::memcpy(body.get(), words.data(), size);
    Decoder out(std::as_bytes(std::span(body.get(), (size + 7) / 8)).first(size));
    uint64_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      switch (random() % 4) {
        case 0:
          sum += out.value<uint32_t>();
          break;
        case 1:
          for (uint64_t item : out.array<uint64_t>()) sum += item;
          break;
        case 2:
          if (const char* text = out.string()) sum += std::strlen(text);
          break;
        default:
          sum += out.value<uint64_t>();
      }
    }
    accepted += out.ok();
    if (!out.ok()) {
      EXPECT_EQ(out.value<uint64_t>(), 0u);
    }
    EXPECT_LE(out.remaining(), size);
    volatile uint64_t sink = sum;
    (void)sink;
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace rcuda::wire
