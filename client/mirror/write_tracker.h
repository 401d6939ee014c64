// WriteTracker: which pages of this process were written since the last query.
//
// It uses asynchronous write protection: a userfaultfd registers the memory, and the kernel itself
// lifts the protection of a page at its first write. So writes by system calls, such as read(2),
// work and count, and no privilege is needed. PAGEMAP_SCAN of /proc/thread-self/pagemap returns the
// written pages and protects them again in one step. Asynchronous write protection and PAGEMAP_SCAN
// exist since Linux 6.7.
//
// Only for private anonymous memory of this process: writes by other processes, or through another
// mapping, are not seen.
// Threads: any. Blocking: system calls. A child of fork() has no tracked memory.
#pragma once

#include <cstddef>
#include <vector>

#include "client/mirror/runs.h"

namespace rcuda::client {

class WriteTracker {
 public:
  // Null if the kernel has no such tracking or denies it to this process, or with
  // RCUDA_MANAGED=compared.
  static WriteTracker* get();

  // Begins to track whole pages. Returns false if that fails. Tracking ends when the memory is
  // unmapped.
  bool watch(void* address, size_t bytes);
  // Adds the runs of pages that were written since the last call and are populated, in ascending
  // order. `protect`: protects them again, so the next write to each page costs a fault; without
  // it, the next call returns the same pages again. Returns false on error: every page may
  // have been written.
  bool take(const void* address, size_t bytes, std::vector<Run>* runs, bool protect = true);

 private:
  WriteTracker(int faults, int pagemap) : faults_(faults), pagemap_(pagemap) {}
  static WriteTracker* open();

  const int faults_, pagemap_;  // both stay open until the process ends
};

}  // namespace rcuda::client
