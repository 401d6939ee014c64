// Copies the pieces of a put into a window with the visibility that link.h promises. The first and
// the last eight bytes are stored as single words. The last word is stored after everything else,
// with release semantics. The partner of this store is the acquire load of the thread that polls
// the last word.
//
// The caller serialises the puts of one Link and calls begin_put() first. The fence in begin_put()
// orders the bytes of this put after the last word of the previous put; a release store alone does
// not.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/transport/link.h"

namespace rcuda::transport {

inline constexpr size_t kWord = sizeof(uint64_t);

inline size_t total_bytes(std::span<const Bytes> pieces) {
  size_t total = 0;
  for (Bytes piece : pieces) total += piece.size();
  return total;
}

inline void begin_put() {
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer does not know thread fences, and GCC warns about them. On x86 a signal fence
  // has the same effect: for release, both only prevent the compiler from reordering.
  std::atomic_signal_fence(std::memory_order_release);
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

inline void store_word(std::byte* destination, uint64_t word, std::memory_order order) {
  std::atomic_ref(*reinterpret_cast<uint64_t*>(destination)).store(word, order);
}

// `destination` is 8-byte aligned; `total` is the sum of the pieces, a multiple of eight, not zero.
inline void store_pieces(std::byte* destination, std::span<const Bytes> pieces, size_t total) {
  const size_t last = total - kWord;
  uint64_t first_word = 0;
  uint64_t last_word = 0;
  size_t position = 0;
  for (Bytes piece : pieces) {
    const std::byte* source = piece.data();
    size_t left = piece.size();
    while (left != 0) {
      size_t count = left;
      if (position < kWord && last != 0) {
        count = std::min(left, kWord - position);
        std::memcpy(reinterpret_cast<std::byte*>(&first_word) + position, source, count);
      } else if (position < last) {
        count = std::min(left, last - position);
        std::memcpy(destination + position, source, count);
      } else {
        std::memcpy(reinterpret_cast<std::byte*>(&last_word) + (position - last), source, count);
      }
      position += count;
      source += count;
      left -= count;
    }
  }
  if (last != 0) store_word(destination, first_word, std::memory_order_relaxed);
  store_word(destination + last, last_word, std::memory_order_release);
}

}  // namespace rcuda::transport
