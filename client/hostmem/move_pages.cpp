#include "client/hostmem/move_pages.h"

#include <algorithm>
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
#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

// Returns the process's userfaultfd for HeldWrites, or -1 if the kernel refuses it. The descriptor
// stays open, because the time to close it grows with the number of mappings of the process. A
// child of fork() opens its own: the inherited descriptor is for the parent's memory.
int held_writes_fd() {
  static Mutex mutex;
  static pid_t owner = 0;
  static int fd = -1;
  MutexLock lock(mutex);
  if (owner == getpid()) return fd;
  owner = getpid();
  // Try without UFFD_USER_MODE_ONLY first: in a privileged process, writes by system calls can then
  // wait, too.
  UniqueFd opened(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC)));
  if (!opened) {
    opened.reset(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
  }
  uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
  fd = opened && ioctl(opened.get(), UFFDIO_API, &api) == 0 ? opened.release() : -1;
  return fd;
}

// While a HeldWrites exists, threads that write to the pages wait; threads that read continue.
class HeldWrites {
 public:
  HeldWrites(void* begin, size_t bytes)
      : fd_(held_writes_fd()), range_{reinterpret_cast<uintptr_t>(begin), bytes} {
    if (!hold()) {
      RCUDA_DEBUG(
          "other threads' writes to the pages at %p may be lost, because the threads cannot "
          "be paused while the pages move to other memory: %s",
          begin, std::strerror(errno));
    }
  }
  ~HeldWrites() {
    if (!registered_) return;
    // Replaced pages are no longer protected and registered. For them, only the last call has an
    // effect: it wakes the waiting threads.
    uffdio_writeprotect open{range_, UFFDIO_WRITEPROTECT_MODE_DONTWAKE};
    (void)ioctl(fd_, UFFDIO_WRITEPROTECT, &open);
    (void)ioctl(fd_, UFFDIO_UNREGISTER, &range_);
    (void)ioctl(fd_, UFFDIO_WAKE, &range_);
  }
  HeldWrites(const HeldWrites&) = delete;
  HeldWrites& operator=(const HeldWrites&) = delete;

 private:
  bool hold() {
    uffdio_register pages{range_, UFFDIO_REGISTER_MODE_WP, 0};
    uffdio_writeprotect hold{range_, UFFDIO_WRITEPROTECT_MODE_WP};
    // Only populated pages can be write-protected.
    if (fd_ < 0 ||
        madvise(reinterpret_cast<void*>(range_.start), range_.len, MADV_POPULATE_READ) != 0 ||
        ioctl(fd_, UFFDIO_REGISTER, &pages) != 0) {
      return false;
    }
    registered_ = true;
    return ioctl(fd_, UFFDIO_WRITEPROTECT, &hold) == 0;
  }

  const int fd_;
  uffdio_range range_;
  bool registered_ = false;
};

// Writes the bytes to the memfd, from `offset` on. The whole pages also contain other memory than
// the application's object. In a program built with AddressSanitizer, neither this code nor the
// sanitizer's memcpy() and pwrite() may read that memory. The bare system call may read it, and
// returns an error for unreadable memory.
bool fill(int backing, size_t offset, const void* begin, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(begin);
  for (size_t at = 0; at < bytes;) {
    const long written =
        syscall(SYS_pwrite64, backing, from + at, bytes - at, static_cast<off_t>(offset + at));
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

// Calls `replace` while writes to the pages are held. If the pages contain this thread's stack,
// another thread calls `replace`, because this thread would block at its first write.
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
    // Until held() returns, this thread must not write to `moved` and `error`: they are on the
    // stack whose pages held() replaces, so a write would block.
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

// Calls `replace` for each piece of the pages. During a call, writes to its piece wait.
bool move_pieces(const MappedPart& part, const std::function<bool(const MappedPart&)>& replace) {
  for (uint64_t at = part.begin; at < part.end; at += kMovedBytes) {
    MappedPart piece = part;
    piece.begin = at;
    piece.end = std::min(at + kMovedBytes, part.end);
    if (!move(piece.address(), piece.bytes(), [&] { return replace(piece); })) return false;
  }
  return true;
}

// Returns a private copy of the pages at another address. *old becomes a second mapping of the old
// pages.
void* copy_of(const MappedPart& piece, void** old) noexcept {
  // With size 0, mremap() makes a second mapping of the same shared pages. The second mapping can
  // be made readable, even if the application has protected its own mapping.
  *old = mremap(piece.address(), 0, piece.bytes(), MREMAP_MAYMOVE);
  if (*old == MAP_FAILED) return MAP_FAILED;
  void* copy =
      mmap(nullptr, piece.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return copy;
  if (mprotect(*old, piece.bytes(), PROT_READ | PROT_WRITE) == 0) {
    std::memcpy(copy, *old, piece.bytes());
    if (mprotect(copy, piece.bytes(), piece.protection) == 0) return copy;
  }
  munmap(copy, piece.bytes());
  return MAP_FAILED;
}

// Replaces the pages by private pages. `frees`: also frees the old pages in their file, because no
// other process uses them.
bool copy_piece(const MappedPart& piece, bool frees) noexcept {
  void* old = MAP_FAILED;
  void* const copy = copy_of(piece, &old);
  const bool done = copy != MAP_FAILED && put_in_place(copy, piece.address(), piece.bytes());
  if (old == MAP_FAILED) return done;
  const int why = errno;
  if (done && frees) (void)madvise(old, piece.bytes(), MADV_REMOVE);
  munmap(old, piece.bytes());
  errno = why;
  return done;
}

}  // namespace

bool move_onto(int backing, std::span<const MappedPart> parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const MappedPart& part) {
    return move_pieces(part, [&](const MappedPart& piece) {
      const size_t offset = piece.begin - parts.front().begin;
      if (!fill(backing, offset, piece.address(), piece.bytes())) return false;
      void* pages = mmap(nullptr, piece.bytes(), piece.protection, MAP_SHARED, backing,
                         static_cast<off_t>(offset));
      return pages != MAP_FAILED && put_in_place(pages, piece.address(), piece.bytes());
    });
  });
}

bool move_off(const MappedPart& part, bool frees) {
  return move_pieces(part, [=](const MappedPart& piece) { return copy_piece(piece, frees); });
}

bool copy_off(const MappedPart& part) noexcept { return copy_piece(part, false); }

}  // namespace rcuda::client
