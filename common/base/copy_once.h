// Copies bytes into memory that other threads read and write at the same time. As a GPU's copy
// engine does, writes each byte once, in ascending order.
//
// memcpy() may write bytes twice (glibc writes 4 to 7 bytes with two stores that overlap). A thread
// that sees the first store and then changes the byte would lose its change.
// Threads: any. Does not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rcuda {

// `to` and `from` must not overlap. Each aligned word of 8 bytes inside of the destination is
// written with one store. So is each aligned word of 4 or 2 bytes at the ends of the destination.
inline void copy_once(std::byte* to, const std::byte* from, size_t bytes) {
  const auto store = [&]<typename Word>(Word word) {
    std::memcpy(&word, from, sizeof word);
    __atomic_store_n(reinterpret_cast<Word*>(to), word, __ATOMIC_RELEASE);
    to += sizeof word;
    from += sizeof word;
    bytes -= sizeof word;
  };
  const auto fits = [&](size_t word) {
    return bytes >= word && reinterpret_cast<uintptr_t>(to) % word == 0;
  };
  while (bytes != 0) {
    if (fits(8)) {
      store(uint64_t{});
    } else if (fits(4)) {
      store(uint32_t{});
    } else if (fits(2)) {
      store(uint16_t{});
    } else {
      store(uint8_t{});
    }
  }
}

}  // namespace rcuda
