// AbsentPages: pages of a mirror whose newest bytes only the worker has. The first access fetches
// them, with some that follow; longer pieces while the application reads on.
//
// A thread of this process serves the faults of a userfaultfd (write_tracker.h). System calls fault
// like the application's threads, for which a kernel wants a privilege: CAP_SYS_PTRACE,
// vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd. Without it no page may be absent,
// because read(2) into such a page would fail.
//
// Threads: any. The thread that serves faults must take no lock that a thread may hold while it
// accesses an absent page. It takes those of an AbsentPages, and those of the session that a fetch
// needs (its ring, its staging); nobody reads the application's managed memory while holding one of
// these. It takes none of mirror.cpp, and none of a stream of stdio: it leaves the output of
// kernels to others. Blocking: an access of an absent page, until its bytes are here; install() and
// drop() for an access in progress; put_back() for memory, ten seconds at most. Errors: a page that
// cannot be fetched or filled stays absent, and the access is tried again. If that is in vain, for
// ten seconds or because the session is lost, the access gets SIGBUS (a system call EFAULT), and
// one line says so. So no page ever holds other bytes than the worker's or the application's.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/mirror/write_tracker.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class AbsentPages : public std::enable_shared_from_this<AbsentPages> {
 public:
  static constexpr size_t kPageBytes = 4096;
  // Reads the worker's bytes of a run into `to`.
  using Fetch = std::function<CUresult(std::byte* to, const Run& run)>;

  // Whether pages of this process may be absent.
  static bool possible();
  // For memory that `tracker` watches. `known` gets the bytes of fetched pages. Null if this
  // process cannot. stop() must be called before `known` and what `fetch` uses go away.
  static std::shared_ptr<AbsentPages> make(WriteTracker& tracker, std::byte* address, size_t bytes,
                                           std::byte* known, Fetch fetch);
  void stop();
  ~AbsentPages();

  bool is_absent(size_t at) const { return state(at) != State::kHere; }
  // Adds the runs of pages that are not absent, in ascending order. Without `with_empty`, pages
  // that nobody has accessed are absent from now on. Waits for accesses in progress: what they
  // fetch may be older than the call, and is told. Returns false if it cannot tell.
  bool present(bool with_empty, std::vector<Run>* runs);
  size_t count() const { return count_.load(std::memory_order_relaxed); }  // of absent pages
  // Drops the bytes of whole pages, which are absent from now on. Adds to *stay those that differ
  // from `known`, because the application has changed them, and those that cannot be dropped.
  // Other threads may access the memory meanwhile: what they write is not lost. Where the kernel
  // has no memory to put changed pages back at once, they stay aside, and count as absent, until an
  // access or put_back().
  void drop(const Run& run, std::vector<Run>* stay);
  // Puts back the pages that are aside. Holds no lock while it waits for memory. Returns false if
  // there is none after ten seconds.
  bool put_back();
  // The bytes of absent pages have come in another way. Pages that cannot be filled stay absent,
  // and pages that are aside stay what they are.
  void install(const Run& run, const std::byte* from);

 private:
  AbsentPages(WriteTracker& tracker, std::byte* address, size_t bytes, std::byte* known,
              std::byte* spare, Fetch fetch);
  enum class State : unsigned char {
    kHere,
    kAbsent,  // the worker has its bytes
    kAside,   // `spare_` has its bytes, which the application has changed
  };
  State state(size_t at) const { return absent_[at / kPageBytes].load(std::memory_order_acquire); }
  static bool start_serving();
  static void serve_all(WriteTracker& tracker);
  void serve(size_t at);
  bool bring(size_t at, CUresult* result);
  bool fetch_from(size_t at, CUresult* result);
  bool give_up(size_t at, CUresult why);
  void drop_present(const Run& run, std::vector<Run>* stay);
  std::vector<Run> differing(const Run& run) const;
  bool put_back_locked(const Run& run);
  void free_spare(const Run& run);
  void free_tables(const Run& run);
  void mark(const Run& run, State state);
  bool make_empty_absent();
  Run run_at(size_t at, size_t most) const;
  void install_locked(const Run& run, const std::byte* from);

  WriteTracker& tracker_;
  std::byte* const address_;
  const size_t bytes_;  // whole pages
  std::byte* const known_;
  std::byte* const spare_;  // as many addresses, where pages are compared before they are dropped
  Mutex mutex_;
  Fetch fetch_;                                 // null once stopped
  bool faults_ = false;                         // accesses of empty pages fault
  bool empty_are_absent_ = false;               // since present() was called without them
  std::vector<std::atomic<State>> absent_;      // by page; changed with mutex_ held
  std::vector<std::atomic<size_t>> absent_in_;  // how many pages of each group are not here
  std::atomic<size_t> count_{0};
  std::atomic<size_t> aside_{0};  // how many of these are aside
  size_t next_ = 0, piece_ = 0;   // where the last piece ended, and its size
  int failures_ = 0;              // since the last access that was served
};

}  // namespace rcuda::client
