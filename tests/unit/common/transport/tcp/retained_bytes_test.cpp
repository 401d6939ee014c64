#include "common/transport/tcp/retained_bytes.h"

#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/transport/tcp/lent_memory.h"

namespace rcuda::transport {
namespace {

constexpr size_t kWindow = 4 * kRetainedBytes;

std::byte pattern(uint64_t at) { return static_cast<std::byte>(at * 131 + (at >> 8)); }

std::vector<std::byte> bytes_from(uint64_t place, size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = pattern(place + i);
  return result;
}

class RetainedBytesTest : public ::testing::Test {
 protected:
  void append(uint64_t place, std::vector<std::byte>& memory, const KeptPiece& kept = {}) {
    const iovec piece{memory.data(), memory.size()};
    retained_.append(place, {&piece, 1}, memory.size(), kept);
  }
  KeptPiece lent(std::vector<std::byte>& memory) {
    lent_.add(memory.data(), memory.size());
    return {0, lent_.find(memory.data(), memory.size())};
  }
  void take_back(std::vector<std::byte>& memory) {
    lent_.remove(memory.data(), memory.size());
    retained_.own(memory.data(), memory.size());
  }
  void expect(uint64_t begin, uint64_t end) {
    for (uint64_t place = begin; place != end;) {
      const RetainedBytes::Part part = retained_.at(place);
      ASSERT_NE(part.bytes, 0u);
      for (size_t i = 0; i < part.bytes; ++i) {
        ASSERT_EQ(part.data[i], pattern(place + i)) << "byte " << place + i;
      }
      place += part.bytes;
    }
  }

  RetainedBytes retained_ = *RetainedBytes::make();
  LentMemory lent_;
};

TEST_F(RetainedBytesTest, CopiesAreIndependentOfTheirSources) {
  constexpr size_t kPiece = 100'000;
  constexpr uint64_t kPieces = kRetainedBytes / kPiece;
  for (uint64_t i = 0; i < kPieces; ++i) {
    std::vector<std::byte> memory = bytes_from(i * kPiece, kPiece);
    append(i * kPiece, memory);
    std::memset(memory.data(), 0xff, memory.size());
  }
  EXPECT_LT(retained_.room(), kPiece);
  expect(0, kPieces * kPiece);
  expect(777'777, kPieces * kPiece);
}

TEST_F(RetainedBytesTest, ReleasedBytesMakeRoom) {
  uint64_t place = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> memory = bytes_from(place, 1'000'000);
    ASSERT_GE(retained_.room(), memory.size());
    append(place, memory);
    const uint64_t kept = place + 300'000;
    retained_.release(kept);
    place += memory.size();
    expect(kept, place);
  }
  retained_.release(place);
  EXPECT_EQ(retained_.room(), kRetainedBytes);
}

TEST_F(RetainedBytesTest, LentMemoryIsNotCopiedUntilItIsTakenBack) {
  std::vector<std::byte> lent_bytes = bytes_from(50, 3'000'000), header = bytes_from(0, 50);
  append(0, header);
  append(50, lent_bytes, lent(lent_bytes));
  EXPECT_EQ(retained_.at(50).data, lent_bytes.data());
  EXPECT_TRUE(retained_.at(50).region);
  EXPECT_GE(retained_.room(), kRetainedBytes - 50);
  take_back(lent_bytes);
  std::memset(lent_bytes.data(), 0xff, lent_bytes.size());
  expect(0, 3'000'050);
  EXPECT_FALSE(retained_.at(50).region);
  retained_.release(3'000'050);
  EXPECT_EQ(retained_.room(), kRetainedBytes);
}

TEST_F(RetainedBytesTest, AcknowledgedBytesAreNotCopied) {
  std::vector<std::byte> memory = bytes_from(0, 3'000'000);
  append(0, memory, lent(memory));
  retained_.release(2'000'000);
  take_back(memory);
  std::memset(memory.data(), 0xff, memory.size());
  expect(2'000'000, 3'000'000);
  EXPECT_EQ(retained_.at(2'000'000).bytes, 256u << 10) << "the first copy begins here";
}

TEST_F(RetainedBytesTest, MemoryIsTakenBackWhileAnotherThreadSends) {
  constexpr size_t kLent = 1'000'000, kCopied = 20'000;
  uint64_t place = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> memory = bytes_from(place, kLent);
    append(place, memory, lent(memory));
    std::thread taker([&] {
      take_back(memory);
      std::memset(memory.data(), 0xff, memory.size());
    });
    for (uint64_t i = 0; i < 10; ++i) {
      std::vector<std::byte> piece = bytes_from(place + kLent + i * kCopied, kCopied);
      append(place + kLent + i * kCopied, piece);
      retained_.release(place + i * kLent / 20);
    }
    taker.join();
    const uint64_t kept = place + 9 * kLent / 20;
    place += kLent + 10 * kCopied;
    expect(kept, place);
    retained_.release(place);
  }
  EXPECT_EQ(retained_.room(), kRetainedBytes);
}

TEST_F(RetainedBytesTest, ItsSizeIsASetting) {
  retained_ = *RetainedBytes::make(1u << 20);
  EXPECT_EQ(retained_.window(), 4u << 20);
  for (uint64_t place = 0; place < 10'000'000; place += 1u << 20) {
    ASSERT_EQ(retained_.room(), 1u << 20);
    std::vector<std::byte> memory = bytes_from(place, 1u << 20);
    append(place, memory);
    EXPECT_EQ(retained_.room(), 0u);
    expect(place, place + memory.size());
    retained_.release(place + memory.size());
  }
}

// The bytes that must be copied exceed the free blocks.
TEST_F(RetainedBytesTest, AWholeWindowCanBeTakenBack) {
  std::vector<std::byte> memory = bytes_from(0, kWindow);
  append(0, memory, lent(memory));
  take_back(memory);
  std::memset(memory.data(), 0xff, memory.size());
  expect(0, kWindow);
  EXPECT_EQ(retained_.room(), kRetainedBytes);
}

TEST_F(RetainedBytesTest, MemoryThatWasTakenBackDuringTheSendIsCopied) {
  std::vector<std::byte> memory = bytes_from(0, 600'000);
  const KeptPiece kept = lent(memory);
  take_back(memory);
  append(0, memory, kept);
  std::memset(memory.data(), 0xff, memory.size());
  expect(0, 600'000);
}

TEST(LentMemoryTest, FindsMemoryThatHoldsAllBytes) {
  std::vector<std::byte> memory(1000);
  std::byte* const begin = memory.data();
  LentMemory lent;
  lent.add(begin + 100, 500);
  lent.add(begin + 200, 50);
  EXPECT_FALSE(lent.find(begin + 99, 10));
  EXPECT_TRUE(lent.find(begin + 100, 500));
  EXPECT_FALSE(lent.find(begin + 100, 501));
  EXPECT_EQ(lent.find(begin + 210, 40)->bytes, 50u);
  EXPECT_EQ(lent.find(begin + 210, 41)->bytes, 500u);
  const auto entry = lent.find(begin + 300, 1);
  lent.remove(begin + 100, 500);
  EXPECT_FALSE(ExposedRegions::Pin(*entry));
  EXPECT_FALSE(lent.find(begin + 300, 1));
  EXPECT_TRUE(lent.find(begin + 200, 50));
}

}  // namespace
}  // namespace rcuda::transport
