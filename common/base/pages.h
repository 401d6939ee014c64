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

// The begin of the page that has the address.
inline uint64_t page_of(uint64_t address) { return address & ~uint64_t{page_bytes() - 1}; }
// The bytes of whole pages that hold so many. Of an address: the first page boundary from it on.
inline uint64_t whole_pages(uint64_t bytes) { return page_of(bytes + page_bytes() - 1); }

}  // namespace rcuda
