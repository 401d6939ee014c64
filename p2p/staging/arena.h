// Arena: hands out blocks of a staging buffer, by offset. The sender of a pair manages the
// receiver's buffer, so an arena knows only sizes and touches no memory. It is a map of holes; at
// most a few dozen blocks are in use at a time. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace rcuda::p2p {

class Arena {
 public:
  // Blocks start at multiples of this value, which is a multiple of a cache line and of a PCIe
  // request of 512 bytes. DMA does not need the alignment of a GPU page.
  static constexpr uint64_t kAlignment = 512;

  // kFirst takes the first hole that is large enough, so the same few places are reused. kNext
  // walks through the whole buffer. kNext is for memory that CPUs read and write: DMA to memory
  // that a CPU has just used is slower.
  enum class Fit : uint8_t { kFirst, kNext };

  explicit Arena(uint64_t bytes = 0, Fit fit = Fit::kFirst) : bytes_(bytes), fit_(fit) {
    if (bytes > 0) holes_[0] = bytes;
  }

  uint64_t bytes() const { return bytes_; }

  std::optional<uint64_t> reserve(uint64_t bytes);  // the offset; nullopt: no hole is large enough
  void release(uint64_t offset, uint64_t bytes);    // the block of reserve()

 private:
  static uint64_t rounded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Returns the first offset from `from` on at which `bytes` (already rounded) are free.
  std::optional<uint64_t> find(uint64_t bytes, uint64_t from) const;

  uint64_t bytes_;
  Fit fit_;
  uint64_t next_ = 0;                   // kNext: the end of the last block handed out
  std::map<uint64_t, uint64_t> holes_;  // offset to length; never adjacent
};

}  // namespace rcuda::p2p
