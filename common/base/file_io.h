// Reads and writes all bytes, in as many system calls as necessary. Any thread. Blocking.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
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

// Appends the bytes up to the end of the file to *text. Stops earlier when *text has more than
// `most` bytes. Returns false on an error; errno says why.
inline bool append_to_end(int file, std::string* text, size_t most = SIZE_MAX) {
  char part[4096];
  while (text->size() <= most) {
    const ssize_t count = ::read(file, part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) return true;
    text->append(part, static_cast<size_t>(count));
  }
  return true;
}

// Returns the text of a small file, such as a file of /proc; empty if it cannot be read. Uses no
// stream of the standard library, because a stream would register an exit handler.
inline std::string read_text(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (file) (void)append_to_end(file.get(), &text);
  return text;
}

// Returns the first line of a small file, without its newline.
inline std::string read_line(const std::string& path) {
  std::string text = read_text(path);
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

}  // namespace rcuda
