// The digest of a block of mirrored memory. The client computes the digest of its bytes, and a GPU
// of the worker the digest of the worker's bytes (server/executor/mirrors/block_digests.h). Blocks
// with equal digests count as equal; different blocks have equal digests with a chance of 2^-128.
//
// Plain functions: any thread, nothing blocks or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rcuda::wire {

// Two sums over the block's words of 8 bytes. Each word adds mix(word ^ place) to the first sum,
// and mix(word + place), with other factors, to the second. For the first word of each 16 bytes,
// `place` is the word's offset times a constant; for the second word, it is the complement of that
// value. mix() multiplies, shifts, multiplies and shifts again; it maps no two words to the same
// value.
struct BlockDigest {
  static constexpr uint64_t kPlace = 0x9e3779b97f4a7c15;
  static constexpr uint64_t kFirst[2] = {0xbf58476d1ce4e5b9, 0x94d049bb133111eb};
  static constexpr uint64_t kSecond[2] = {0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53};

  uint64_t first, second;

  // Used in place of an unknown digest. Every block counts as different from it.
  static constexpr BlockDigest none() { return {UINT64_MAX, UINT64_MAX}; }
  bool operator==(const BlockDigest&) const = default;
};
static_assert(sizeof(BlockDigest) == 16);

// Returns the digest of the `bytes` (a multiple of 16) at `block`. `offset`: their place in the
// mirrored memory.
inline BlockDigest block_digest(const std::byte* block, size_t bytes, uint64_t offset) {
  const auto mix = [](uint64_t x, const uint64_t(&factors)[2]) {
    x *= factors[0];
    x ^= x >> 32;
    x *= factors[1];
    return x ^ x >> 29;
  };
  BlockDigest sum{0, 0};
  for (size_t at = 0; at < bytes; at += 16) {
    uint64_t words[2];
    std::memcpy(words, block + at, sizeof words);
    const uint64_t place = (offset + at) * BlockDigest::kPlace;
    sum.first += mix(words[0] ^ place, BlockDigest::kFirst);
    sum.second += mix(words[0] + place, BlockDigest::kSecond);
    sum.first += mix(words[1] ^ ~place, BlockDigest::kFirst);
    sum.second += mix(words[1] + ~place, BlockDigest::kSecond);
  }
  return sum;
}

}  // namespace rcuda::wire
