// The size of this host's pages, and ranges in whole pages. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include <unistd.h>

namespace rcuda {

inline size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// The first address of the page that contains `address`.
inline uint64_t page_of(uint64_t address) { return address & ~uint64_t{page_bytes() - 1}; }
// Rounds a size up to whole pages, or an address up to a page boundary.
inline uint64_t whole_pages(uint64_t bytes) { return page_of(bytes + page_bytes() - 1); }

}  // namespace rcuda
