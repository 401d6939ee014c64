// Arena: hands out blocks of a staging buffer by offset. The sender of a pair manages the
// receiver's buffer, so an arena knows sizes only and touches no memory. First fit over a map of
// holes; a few dozen blocks at most are out at once. Not thread-safe.
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

  explicit Arena(uint64_t bytes = 0) : bytes_(bytes) {
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

  uint64_t bytes_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> holes_;  // offset to length, never adjacent
};

}  // namespace rcuda::p2p
