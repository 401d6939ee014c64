// Reads and writes all bytes, in as many system calls as necessary. Any thread. Blocking.
#pragma once

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda {

// Returns false on an error (errno says why), and if the file has fewer bytes.
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

// The text of a small file, such as those of /proc; empty if it cannot be read. Uses no stream of
// the standard library: that would register a handler for the program's exit.
inline std::string read_text(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[4096];
  ssize_t bytes = 0;
  while (file && (bytes = ::read(file.get(), part, sizeof part)) > 0) {
    text.append(part, static_cast<size_t>(bytes));
  }
  return text;
}

}  // namespace rcuda
