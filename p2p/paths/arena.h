// Arena: hands out blocks of a staging buffer by offset. The sender of a pair manages the
// receiver's buffer, so an arena knows sizes only and touches no memory. A map of holes; a few
// dozen blocks at most are out at once. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace rcuda::p2p {

class Arena {
 public:
  // Blocks start at multiples of this: a GPU page's worth of DMA alignment is not needed, whole
  // cache lines and 512-byte PCIe requests are.
  static constexpr uint64_t kAlignment = 512;

  // kFirst takes the first hole that is large enough, and so the same few places again and again.
  // kNext walks through the whole buffer, for memory that processors read and write: DMA to what
  // they have just used is slower.
  enum class Fit : uint8_t { kFirst, kNext };

  explicit Arena(uint64_t bytes = 0, Fit fit = Fit::kFirst) : bytes_(bytes), fit_(fit) {
    if (bytes > 0) holes_[0] = bytes;
  }

  uint64_t bytes() const { return bytes_; }
  uint64_t used_bytes() const { return used_; }

  std::optional<uint64_t> reserve(uint64_t bytes);
  void release(uint64_t offset, uint64_t bytes);  // as reserved

 private:
  static uint64_t rounded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // The first place for so much, which is rounded, at or behind `from`.
  std::optional<uint64_t> find(uint64_t bytes, uint64_t from) const;

  uint64_t bytes_;
  Fit fit_;
  uint64_t used_ = 0;
  uint64_t next_ = 0;                   // kNext: behind the last block handed out
  std::map<uint64_t, uint64_t> holes_;  // offset to length, never adjacent
};

}  // namespace rcuda::p2p
