// Keeps foreign libraries from using descriptors 0 to 2, which belong to the program.
//
// A library that opens descriptors for itself gets the lowest free numbers. (UniqueFd moves only
// rcuda's own descriptors to higher numbers.) While a StandardDescriptorsTaken exists, it occupies
// those of the descriptors 0 to 2 that the program has closed. It opens them with O_PATH, so
// reading and writing them still fails with EBADF.
// Threads: any. Nothing blocks. Errors: a descriptor that cannot be taken stays free.
#pragma once

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace rcuda {

class StandardDescriptorsTaken {
 public:
  StandardDescriptorsTaken() {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
      if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
      const int opened = ::open("/", O_PATH | O_CLOEXEC);
      taken_[fd] = opened == fd;
      if (opened >= 0 && opened != fd) ::close(opened);  // another thread was first
    }
  }
  ~StandardDescriptorsTaken() {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
      // The program may have closed our descriptor, or opened another file under its number.
      const int flags = taken_[fd] ? ::fcntl(fd, F_GETFL) : -1;
      if (flags >= 0 && (flags & O_PATH) != 0) ::close(fd);
    }
  }
  StandardDescriptorsTaken(const StandardDescriptorsTaken&) = delete;
  StandardDescriptorsTaken& operator=(const StandardDescriptorsTaken&) = delete;

 private:
  bool taken_[STDERR_FILENO + 1] = {};
};

}  // namespace rcuda
