// UniqueFd owns one file descriptor and closes it. -1 means that it owns no descriptor.
//
// Descriptors 0 to 2 belong to the program, even while it has closed them: a later printf() would
// write into our file. So a UniqueFd moves a descriptor of 0 to 2 to a higher number and makes it
// close-on-exec. At the process's limit of descriptors, it owns none and sets errno.
#pragma once

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace rcuda {

// Moves a descriptor of 0 to 2 to a higher number, close-on-exec; returns others unchanged. If the
// move fails, closes the descriptor and returns -1 with errno.
inline int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  return moved;
}

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(above_standard(fd)) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, above_standard(fd));
    if (old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace rcuda
