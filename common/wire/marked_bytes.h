// A mask marks bytes of a range. It has a bit for each byte, in ascending order from bit 0 of
// mask[0].
//
// Plain functions: any thread, nothing blocks or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rcuda::wire {

constexpr size_t mask_bytes(size_t bytes) { return (bytes + 7) / 8; }

// Sets the marks of the bytes that differ between `now` and `before`.
inline void mark_differences(const std::byte* now, const std::byte* before, size_t bytes,
                             uint8_t* mask) {
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t a, b;
    std::memcpy(&a, now + at, sizeof a);
    std::memcpy(&b, before + at, sizeof b);
    // Folds each byte into its lowest bit, and collects these bits in the highest byte.
    uint64_t differs = a ^ b;
    differs |= differs >> 4;
    differs |= differs >> 2;
    differs |= differs >> 1;
    mask[at / 8] =
        static_cast<uint8_t>(((differs & 0x0101010101010101) * 0x0102040810204080) >> 56);
  }
  if (at == bytes) return;
  mask[at / 8] = 0;
  for (size_t i = at; i < bytes; ++i) {
    if (now[i] != before[i]) mask[at / 8] |= static_cast<uint8_t>(1u << (i - at));
  }
}

inline void mark_all(size_t bytes, uint8_t* mask) {
  std::memset(mask, 0xff, bytes / 8);
  if (bytes % 8 != 0) mask[bytes / 8] = static_cast<uint8_t>((1u << bytes % 8) - 1);
}

// The smallest part of the range that contains all marked bytes. It begins at a multiple of 8
// bytes, and ends at such a multiple or at the end of the range.
struct MarkedPart {
  size_t at, bytes;
};
inline MarkedPart marked_part(size_t bytes, const uint8_t* mask) {
  size_t first = 0, end = mask_bytes(bytes);
  while (first < end && mask[first] == 0) ++first;
  if (first == end) return {0, 0};
  while (mask[end - 1] == 0) --end;
  const size_t at = 8 * first;
  return {at, 8 * end < bytes ? 8 * end - at : bytes - at};
}

// Copies the marked bytes and writes no other bytes. A word of 4 or 8 bytes that is fully marked is
// written as a whole. Marks after the last byte are ignored.
inline void copy_marked(std::byte* to, const std::byte* from, size_t bytes, const uint8_t* mask) {
  for (size_t at = 0; at < bytes; at += 8) {
    const size_t length = bytes - at < 8 ? bytes - at : 8;
    uint32_t marks = mask[at / 8] & ((1u << length) - 1);
    if (marks == 0xff) {
      std::memcpy(to + at, from + at, 8);
      continue;
    }
    for (size_t half = 0; half < 8; half += 4) {
      if ((marks >> half & 0xf) != 0xf) continue;
      std::memcpy(to + at + half, from + at + half, 4);
      marks &= ~(0xfu << half);
    }
    for (; marks != 0; marks &= marks - 1) {
      const auto i = at + static_cast<size_t>(__builtin_ctz(marks));
      to[i] = from[i];
    }
  }
}

// Writes the marked bytes of a word atomically, while other threads may write the word.
template <typename Word>
void write_word(std::byte* to, const std::byte* from, uint32_t marks) {
  Word now, word, marked = 0;
  std::memcpy(&word, from, sizeof word);
  for (; marks != 0; marks &= marks - 1) marked |= Word{0xff} << 8 * __builtin_ctz(marks);
  auto* const there = reinterpret_cast<Word*>(to);
  __atomic_load(there, &now, __ATOMIC_RELAXED);
  for (Word next;
       next = (now & ~marked) | (word & marked),
       !__atomic_compare_exchange(there, &now, &next, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);) {
  }
}

// Works as copy_marked(), into memory that other threads write at the same time. If `to` is aligned
// to 8 (4) bytes, the marked bytes of each whole word of 8 (4) bytes change together, as with one
// store.
inline void write_marked(std::byte* to, const std::byte* from, size_t bytes, const uint8_t* mask) {
  const uintptr_t unaligned = reinterpret_cast<uintptr_t>(to) % 8;
  if (unaligned % 4 != 0) return copy_marked(to, from, bytes, mask);
  const auto write_half = [&](size_t at, uint32_t marks) {
    if (marks != 0) write_word<uint32_t>(to + at, from + at, marks);
  };
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint32_t marks = mask[at / 8];
    if (unaligned == 0 && marks == 0xff) {
      std::memcpy(to + at, from + at, 8);
    } else if (unaligned == 0 && (marks & 0x0f) != 0 && (marks & 0xf0) != 0) {
      write_word<uint64_t>(to + at, from + at, marks);
    } else if (marks != 0) {
      write_half(at, marks & 0x0f);
      write_half(at + 4, marks >> 4);
    }
  }
  if (at == bytes) return;
  uint8_t marks = mask[at / 8];
  if (bytes - at >= 4) {
    write_half(at, marks & 0x0f);
    marks &= 0xf0;
  }
  copy_marked(to + at, from + at, bytes - at, &marks);
}

}  // namespace rcuda::wire
