// WriteTracker: which pages of this process were written since the last question.
//
// It uses asynchronous write protection: a userfaultfd registers the memory, and the kernel itself
// lifts the protection of a page at its first write. So writes by system calls, such as read(2),
// work and count, and no privilege is needed. PAGEMAP_SCAN of /proc/thread-self/pagemap tells the
// written pages and protects them again in one step. Both exist since Linux 6.7.
//
// Where the process may handle faults of system calls too, the same userfaultfd serves accesses of
// empty pages (absent_pages.h).
//
// Only for private anonymous memory of this process: writes by other processes, or through another
// mapping, are not seen.
// Threads: any. Blocking: system calls. A child of fork() has no tracked memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/mirror/runs.h"

namespace rcuda::client {

class WriteTracker {
 public:
  virtual ~WriteTracker() = default;
  // Null if the kernel cannot, or does not let this process, or RCUDA_MANAGED=compared.
  static WriteTracker* get();

  // Begins to track whole pages. Returns false if that fails. Tracking ends when the memory is
  // unmapped. `empty_fault`: accesses of empty pages fault, and next_fault() tells.
  bool watch(void* address, size_t bytes, bool empty_fault = false);
  // Adds the runs of pages that were written since the last call, and are not empty, in ascending
  // order. Without `protect`, which makes the next write of each page cost a fault, the next call
  // tells the same pages again. Returns false if it cannot tell; then every page may have been
  // written.
  bool take(const void* address, size_t bytes, std::vector<Run>* runs, bool protect = true);
  // Adds the runs of pages that are not empty. Returns false if it cannot tell.
  bool present(const void* address, size_t bytes, std::vector<Run>* runs);

  // Whether empty pages may fault: also in system calls. Not with RCUDA_MANAGED=tracked.
  bool serves_faults() const { return serves_faults_; }
  // The page of the next fault. Blocks. Null if the kernel tells no more.
  void* next_fault();
  // The following take whole pages, and wake who waits for those that are there afterwards.
  // Fills empty pages with zeros. Returns false if the kernel has no memory for one.
  bool put_zeros(void* address, size_t bytes);
  // Fills empty pages from `from`; pages that are there stay what they are. Returns the number of
  // bytes up to the first page for which the kernel has no memory. The pages count as written only
  // with `written`.
  virtual size_t put_pages(void* address, const void* from, size_t bytes, bool written = false);
  // Accesses of these empty pages get SIGBUS, and system calls EFAULT. put_pages() ends that.
  // Returns false if the kernel has no memory for it.
  bool poison(void* address, size_t bytes);
  // Accesses that wait for these pages are made again, and may fault again.
  void wake(void* address, size_t bytes);
  // Moves the pages to `to`, which is mapped already, in one step for all threads: what they wrote
  // before is there, and the next access faults. Returns false if the pages are still in place.
  virtual bool move_out(void* address, void* to, size_t bytes);

 protected:
  WriteTracker(const WriteTracker&) = default;  // of the same descriptors

 private:
  WriteTracker(int faults, int pagemap, bool serves_faults)
      : faults_(faults), pagemap_(pagemap), serves_faults_(serves_faults) {}
  static WriteTracker* open();
  bool scan(const void* address, size_t bytes, uint64_t flags, uint64_t category,
            std::vector<Run>* runs);

  const int faults_, pagemap_;  // both stay open until the process ends
  const bool serves_faults_;
};

}  // namespace rcuda::client
