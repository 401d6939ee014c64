// RetainedBytes: a copy of the last bytes of a stream, found by their place in the stream.
//
// One thread appends. Another thread may read bytes that were appended before, as long as the
// appending thread does not reach them again, kBytes later. The memory is allocated page by page as
// the bytes come. Nothing blocks. make() fails without memory.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <sys/mman.h>
#include <sys/uio.h>

#include "common/base/status.h"
#include "common/transport/mapping.h"

namespace rcuda::transport {

class RetainedBytes {
 public:
  static constexpr size_t kBytes = 4u << 20;

  static Result<RetainedBytes> make() {
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return Status::from_errno(errno, "memory for bytes that were sent");
    RetainedBytes result;
    result.memory_ = Mapping(memory, kBytes);
    return result;
  }

  // Appends the first `bytes` of `pieces`, at most kBytes, at this place of the stream.
  void append(uint64_t place, std::span<const iovec> pieces, size_t bytes) {
    for (const iovec& piece : pieces) {
      auto* from = static_cast<const std::byte*>(piece.iov_base);
      size_t left = std::min(piece.iov_len, bytes);
      bytes -= left;
      while (left != 0) {
        const size_t at = place % kBytes;
        const size_t part = std::min(left, kBytes - at);
        std::memcpy(memory_.data() + at, from, part);
        from += part;
        left -= part;
        place += part;
      }
    }
  }

  // The bytes from `begin` to `end`, at most kBytes. The second piece may be empty.
  std::array<iovec, 2> between(uint64_t begin, uint64_t end) const {
    const size_t at = begin % kBytes, bytes = end - begin;
    const size_t first = std::min(bytes, kBytes - at);
    return {iovec{memory_.data() + at, first}, iovec{memory_.data(), bytes - first}};
  }

 private:
  RetainedBytes() = default;

  Mapping memory_;
};

}  // namespace rcuda::transport
