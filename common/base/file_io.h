// Reads and writes all bytes, in as many system calls as that takes. Any thread. Blocking.
#pragma once

#include <cerrno>
#include <cstddef>
#include <span>

#include <unistd.h>

namespace rcuda {

// Returns false if the file ends before, or on an error; then errno says why.
inline bool read_all(int file, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::read(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// Returns false on an error; errno says why.
inline bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace rcuda
