// UnmapMonitor: tells whether memory that a program owns is still the memory it was.
//
// A registration pins pages, not addresses: once the program unmaps, moves or discards a range, the
// adapter goes on reading the old pages. Registrations that outlive one transfer are kept only
// while the kernel vouches for their range: it is watched by a userfaultfd that asks for no page
// faults (write protection is registered and never armed), only for the news of munmap, mremap and
// madvise. The kernel holds the thread that changes the range until the news is read.
//
//   - The news of munmap comes after the deed, so a range may be mapped anew before it is read.
//     holds() therefore also asks the kernel whether any change is under way, and then says no.
//   - The news of madvise(MADV_DONTNEED) comes before the deed, so old pages could be registered
//     again meanwhile. Such a range is watched no more until it is unmapped.
//   - Only private anonymous memory can be watched: files can be truncated behind the kernel's
//     news.
//
// One per process, since memory can be watched by one userfaultfd only; never destroyed. Its thread
// must be able to run while any other thread is stuck inside munmap with locks of the program's
// allocator held, so neither it nor anybody who holds `mutex_` allocates, frees or unmaps memory.
// All functions may be called from any thread; watch() and release() block for a system call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <sys/types.h>

#include "common/base/unique_fd.h"

namespace rcuda::transport::verbs {

class UnmapMonitor {
 public:
  // nullptr where the kernel has no such thing or does not grant it, and in a forked child.
  static UnmapMonitor* get();

  static constexpr int kMost = 256;

  // Starts to watch the pages of [begin, begin + bytes): a number for the functions below, or -1 if
  // they cannot be watched. Register the memory after this.
  int watch(uintptr_t begin, size_t bytes);
  // Whether the range has been the same memory ever since; false also when that cannot be told now.
  bool holds(int watch);
  // Whether holds() will never be true again.
  bool lost(int watch);
  void release(int watch);

 private:
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uintptr_t wide_begin = 0;  // the mappings that it lies in, which are watched as a whole
    uintptr_t wide_end = 0;
    bool used = false;
    bool valid = false;
    bool meets(uintptr_t from, uintptr_t to) const { return begin < to && from < end; }
  };

  UnmapMonitor() = default;
  bool open();
  void run();
  void drain_locked();
  void invalidate_locked(uintptr_t begin, uintptr_t end);
  void poison_locked(uintptr_t begin, uintptr_t end);
  bool change_under_way();
  void release_watching(int watch);

  UniqueFd fd_;
  pid_t owner_ = 0;
  std::mutex watching_;     // one at a time begins or ends to watch; may be held across anything
  uintptr_t own_page_ = 0;  // watched as well, to ask the kernel questions about
  std::mutex mutex_;
  std::array<Range, kMost> ranges_;   // mutex_
  std::array<Range, 32> poisoned_{};  // mutex_: discarded, not yet unmapped
};

}  // namespace rcuda::transport::verbs
