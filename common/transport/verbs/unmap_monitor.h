// UnmapMonitor: tells whether a range of the program's memory is still the same memory.
//
// A registration pins pages, not addresses: after the program unmaps, moves or discards a range,
// the adapter goes on reading the old pages. A registration is kept beyond one transfer only while
// the kernel reports changes of its range. A userfaultfd watches the range. It asks for no page
// faults (write protection is registered and never armed), only for events of munmap, mremap and
// madvise. The kernel holds the thread that changes the range until the event has been read.
//
//   - The event of munmap comes after the change, so the range may be mapped anew before the event
//   is
//     read. holds() therefore also asks the kernel whether a change is in progress, and if so
//     returns false.
//   - The event of madvise(MADV_DONTNEED) comes before the change, so the old pages could be
//   registered
//     again in between. Such a range is not watched again until it is unmapped.
//   - Only private anonymous memory can be watched: a file can be truncated without an event.
//
// There is one per process, because memory can be watched by one userfaultfd only. It is never
// destroyed. Its thread must be able to run while another thread is held inside munmap with locks
// of the program's allocator. So neither this thread nor a thread that holds `mutex_` allocates,
// frees or unmaps memory. Any thread may call any function; watch() and release() block for a
// system call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <sys/types.h>

#include "common/base/mutex.h"
#include "common/base/unique_fd.h"

namespace rcuda::transport::verbs {

class UnmapMonitor {
 public:
  // nullptr if the kernel has no userfaultfd or does not permit it, and in a forked child.
  static UnmapMonitor* get();

  static constexpr int kMax = 256;

  // Starts to watch the pages of [begin, begin + bytes). Returns a number for the functions below,
  // or -1 if the pages cannot be watched. Register the memory after this call.
  int watch(uintptr_t begin, size_t bytes);
  // Whether the range has been the same memory since watch(). Also false if that is unknown at
  // present.
  bool holds(int watch);
  // Whether holds() can never return true again.
  bool lost(int watch);
  void release(int watch);

 private:
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uintptr_t wide_begin = 0;  // the mappings around the range, which are watched as a whole
    uintptr_t wide_end = 0;
    bool used = false;
    bool valid = false;
    bool meets(uintptr_t from, uintptr_t to) const { return begin < to && from < end; }
  };

  UnmapMonitor() = default;
  bool open();
  void run();
  void drain_locked() RCUDA_REQUIRES(mutex_);
  void invalidate_locked(uintptr_t begin, uintptr_t end) RCUDA_REQUIRES(mutex_);
  void poison_locked(uintptr_t begin, uintptr_t end) RCUDA_REQUIRES(mutex_);
  bool change_under_way();
  void release_watching(int watch) RCUDA_REQUIRES(watching_);

  UniqueFd fd_;
  pid_t owner_ = 0;
  Mutex watching_;          // held while a watch begins or ends, across any call
  uintptr_t own_page_ = 0;  // also watched: serves to ask the kernel questions
  Mutex mutex_;
  std::array<Range, kMax> ranges_ RCUDA_GUARDED_BY(mutex_);
  std::array<Range, 32> poisoned_ RCUDA_GUARDED_BY(mutex_){};  // discarded, not yet unmapped
};

}  // namespace rcuda::transport::verbs
