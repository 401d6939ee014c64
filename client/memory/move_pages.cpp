#include "client/memory/move_pages.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/start_thread.h"
#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

// While it exists, threads that write to the pages wait; threads that read continue.
class HeldWrites {
 public:
  HeldWrites(void* begin, size_t bytes) : range_{reinterpret_cast<uintptr_t>(begin), bytes} {
    if (!hold(begin, bytes)) {
      RCUDA_DEBUG("writes to %p cannot be held while it is registered: %s", begin,
                  std::strerror(errno));
      fd_.reset();
    }
  }
  ~HeldWrites() {
    if (!fd_) return;
    // Has no effect if other pages are mapped here by now. The waiting threads continue when the
    // descriptor is closed.
    uffdio_writeprotect open{range_, UFFDIO_WRITEPROTECT_MODE_DONTWAKE};
    (void)ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &open);
  }
  HeldWrites(const HeldWrites&) = delete;
  HeldWrites& operator=(const HeldWrites&) = delete;

 private:
  bool hold(void* begin, size_t bytes) {
    // In a privileged process, the writes of system calls can wait too.
    fd_.reset(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC)));
    if (!fd_)
      fd_.reset(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
    uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
    uffdio_register pages{range_, UFFDIO_REGISTER_MODE_WP, 0};
    uffdio_writeprotect hold{range_, UFFDIO_WRITEPROTECT_MODE_WP};
    // Only populated pages can be write-protected.
    return fd_ && ioctl(fd_.get(), UFFDIO_API, &api) == 0 &&
           madvise(begin, bytes, MADV_POPULATE_READ) == 0 &&
           ioctl(fd_.get(), UFFDIO_REGISTER, &pages) == 0 &&
           ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &hold) == 0;
  }

  uffdio_range range_;
  UniqueFd fd_;
};

// Writes the bytes to the beginning of the memfd. The whole pages also contain memory beside the
// application's object. In a program built with AddressSanitizer, neither this code nor its
// memcpy() and pwrite() may read that memory. The bare system call may, and it returns an error for
// unreadable memory.
bool fill(int backing, const void* begin, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(begin);
  for (size_t at = 0; at < bytes;) {
    const long written =
        syscall(SYS_pwrite64, backing, from + at, bytes - at, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

// Replaces the pages in one step: no thread ever sees missing pages or older contents.
bool put_in_place(void* pages, void* begin, size_t bytes) {
  if (mremap(pages, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED) return true;
  munmap(pages, bytes);
  return false;
}

// Calls `replace` while writes are held. If the pages contain this thread's stack, another thread
// does it: this thread would wait for itself.
bool move(void* begin, size_t bytes, const std::function<bool()>& replace) {
  constexpr uintptr_t kFramesBelow = 64 << 10, kFramesAbove = 4 << 10;
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const auto held = [&] {
    const HeldWrites writes(begin, bytes);
    return replace();
  };
  if (first + bytes <= frame - kFramesBelow || first >= frame + kFramesAbove) return held();
  bool moved = false;
  int error = 0;
  std::thread other;
  const Status started = start_thread(&other, [&] {
    // Until held() returns, this thread must not write to `moved` and `error`, which are on the
    // held stack.
    const bool done = held();
    const int why = errno;
    moved = done;
    error = why;
  });
  if (!started.ok()) return false;
  other.join();
  errno = error;
  return moved;
}

}  // namespace

bool move_onto(int backing, void* begin, size_t bytes) {
  return move(begin, bytes, [=] {
    if (!fill(backing, begin, bytes)) return false;
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, backing, 0);
    return pages != MAP_FAILED && put_in_place(pages, begin, bytes);
  });
}

bool move_off(void* begin, size_t bytes) {
  return move(begin, bytes, [=] { return copy_off(begin, bytes); });
}

bool copy_off(void* begin, size_t bytes) noexcept {
  // With size 0, mremap() makes a second mapping of the same shared pages. It can be made readable,
  // even if the application has protected its own mapping.
  void* from = mremap(begin, 0, bytes, MREMAP_MAYMOVE);
  if (from == MAP_FAILED) return false;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool readable = pages != MAP_FAILED && mprotect(from, bytes, PROT_READ) == 0;
  if (readable) std::memcpy(pages, from, bytes);
  munmap(from, bytes);
  if (readable) return put_in_place(pages, begin, bytes);
  if (pages != MAP_FAILED) munmap(pages, bytes);
  return false;
}

}  // namespace rcuda::client
