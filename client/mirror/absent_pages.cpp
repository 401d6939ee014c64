#include "client/mirror/absent_pages.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include <sys/mman.h>

#include "client/session/reply.h"
#include "client/session/task_pool.h"
#include "common/base/log.h"
#include "common/base/pages.h"
#include "common/base/start_thread.h"
#include "common/cuda/errors.h"

namespace rcuda::client {
namespace {

// Of a fetch: the first of accesses that follow no other, and the largest.
constexpr size_t kLeastPiece = 64 << 10;
constexpr size_t kMostPiece = 16 << 20;
// Of pages whose absent ones are counted, so that a look at all need not look at each.
constexpr size_t kGroupPages = 512;
// Of memory that one thread installs at a time.
constexpr size_t kInstallBytes = 512 << 10;
// An access that cannot be served is tried again this often, about ten seconds in all.
constexpr int kAttempts = 200;
constexpr auto kPause = std::chrono::milliseconds(50);
// Of a large page. Pages move in one step if both addresses have the same place in one.
constexpr size_t kLargePage = 2 << 20;

Mutex ranges_mutex;
// By the end of the range. Never destroyed, as the thread that serves faults does not end.
std::map<const std::byte*, std::shared_ptr<AbsentPages>>& ranges() RCUDA_REQUIRES(ranges_mutex) {
  static auto* instance = new std::map<const std::byte*, std::shared_ptr<AbsentPages>>;
  return *instance;
}

// Addresses without memory, which lie like `like` in a large page. Null if there are none.
std::byte* reserve(const std::byte* like, size_t bytes) {
  void* const all = mmap(nullptr, bytes + kLargePage, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(all);
  const size_t before =
      (reinterpret_cast<uintptr_t>(like) - reinterpret_cast<uintptr_t>(first)) % kLargePage;
  if (before != 0) munmap(first, before);
  if (before != kLargePage) munmap(first + before + bytes, kLargePage - before);
  return first + before;
}

void tell_once(const std::byte* at, CUresult why) {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  RCUDA_ERROR(
      "managed memory at %p could not be fetched or filled (CUDA error %d): accesses of such "
      "memory get SIGBUS, and calls that use it fail",
      static_cast<const void*>(at), static_cast<int>(why));
}

// Frees the memory of reserved addresses.
void empty(std::byte* reserved, size_t bytes) {
  if (mmap(reserved, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) != reserved) {
    (void)madvise(reserved, bytes, MADV_DONTNEED);
  }
}

}  // namespace

AbsentPages::AbsentPages(WriteTracker& tracker, std::byte* address, size_t bytes, std::byte* known,
                         std::byte* spare, Fetch fetch)
    : tracker_(tracker),
      address_(address),
      bytes_(whole_pages(bytes)),
      known_(known),
      spare_(spare),
      fetch_(std::move(fetch)),
      absent_(bytes_ / kPageBytes),
      absent_in_((absent_.size() + kGroupPages - 1) / kGroupPages) {}

AbsentPages::~AbsentPages() { munmap(spare_, bytes_); }

bool AbsentPages::possible() {
  const WriteTracker* const tracker = WriteTracker::get();
  return tracker && tracker->serves_faults() && page_bytes() == kPageBytes;
}

std::shared_ptr<AbsentPages> AbsentPages::make(WriteTracker& tracker, std::byte* address,
                                               size_t bytes, std::byte* known, Fetch fetch) {
  if (!possible()) return nullptr;
  static const bool serving = start_serving();
  if (!serving) return nullptr;
  std::byte* const spare = reserve(address, whole_pages(bytes));
  if (!spare) return nullptr;
  std::shared_ptr<AbsentPages> made(
      new AbsentPages(tracker, address, bytes, known, spare, std::move(fetch)));
  MutexLock lock(ranges_mutex);
  ranges()[address + made->bytes_] = made;
  return made;
}

void AbsentPages::stop() {
  {
    MutexLock lock(ranges_mutex);
    ranges().erase(address_ + bytes_);
  }
  MutexLock lock(mutex_);
  fetch_ = nullptr;
}

bool AbsentPages::start_serving() {
  std::thread thread;
  const Status started = start_thread(&thread, [] { serve_all(*WriteTracker::get()); });
  if (!started.ok()) {
    RCUDA_WARN("managed memory is fetched after each wait: %s", started.message().c_str());
    return false;
  }
  thread.detach();
  return true;
}

void AbsentPages::serve_all(WriteTracker& tracker) {
  pthread_setname_np(pthread_self(), "rcuda-faults");
  while (auto* const at = static_cast<std::byte*>(tracker.next_fault())) {
    std::shared_ptr<AbsentPages> range;
    {
      MutexLock lock(ranges_mutex);
      const auto found = ranges().upper_bound(at);
      if (found != ranges().end() && at >= found->second->address_) range = found->second;
    }
    if (range) {
      range->serve(static_cast<size_t>(at - range->address_));
    } else {  // freed meanwhile
      std::byte* const page = at - reinterpret_cast<uintptr_t>(at) % kPageBytes;
      if (!tracker.put_zeros(page, kPageBytes)) (void)tracker.poison(page, kPageBytes);
    }
  }
}

// The pages from there on whose bytes the worker has.
Run AbsentPages::run_at(size_t at, size_t most) const {
  size_t end = at;
  while (end < bytes_ && end - at < most && state(end) == State::kAbsent) end += kPageBytes;
  return {at, end - at};
}

void AbsentPages::serve(size_t at) {
  at = at / kPageBytes * kPageBytes;
  MutexLock lock(mutex_);
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (bring(at, &result)) {
    failures_ = 0;
    return;
  }
  const bool in_vain = cuda::is_sticky(result) || result == kSessionLost;
  if ((in_vain || ++failures_ >= kAttempts) && give_up(at, result)) return;
  lock.unlock();
  std::this_thread::sleep_for(kPause);
  tracker_.wake(address_ + at, kPageBytes);  // the access faults again
}

// Whether the page is there now. *result is an error of a fetch.
bool AbsentPages::bring(size_t at, CUresult* result) {
  const Run page{at, kPageBytes};
  if (state(at) == State::kAside) {
    const bool there = put_back_locked(page);
    free_spare(page);
    return there;
  }
  if (state(at) == State::kAbsent && fetch_) return fetch_from(at, result);
  // Nobody has written there yet, or another fault was served with this page.
  return tracker_.put_zeros(address_ + at, kPageBytes);
}

// Whether the page is there now. *result is an error of the fetch.
bool AbsentPages::fetch_from(size_t at, CUresult* result) {
  piece_ = at == next_ ? std::clamp(2 * piece_, kLeastPiece, kMostPiece) : kLeastPiece;
  const Run run = run_at(at, piece_);
  static std::byte* const buffer = [] {
    void* memory = mmap(nullptr, kMostPiece, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }();
  try {
    *result = buffer ? fetch_(buffer, run) : CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::bad_alloc&) {
    *result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (*result != CUDA_SUCCESS) return false;
  next_ = run.at + run.bytes;
  install_locked(run, buffer);
  if (is_absent(at)) *result = CUDA_ERROR_OUT_OF_MEMORY;
  return !is_absent(at);
}

// Returns false if the kernel has no memory for that.
bool AbsentPages::give_up(size_t at, CUresult why) {
  tell_once(address_ + at, why);
  if (!tracker_.poison(address_ + at, kPageBytes)) return false;
  // What nobody has written the worker has as well.
  if (state(at) == State::kHere) mark({at, kPageBytes}, State::kAbsent);
  return true;
}

// With mutex_ held, so that no page is filled after it was seen empty.
bool AbsentPages::make_empty_absent() {
  if (!faults_ && !(faults_ = tracker_.watch(address_, bytes_, true))) return false;
  std::vector<Run> filled;
  if (!tracker_.present(address_, bytes_, &filled)) return false;
  filled.push_back({bytes_, 0});
  size_t at = 0;
  for (const Run& run : filled) {
    for (; at < run.at; at += kPageBytes) {
      if (!is_absent(at)) mark({at, kPageBytes}, State::kAbsent);
    }
    at = whole_pages(run.at + run.bytes);
  }
  return true;
}

bool AbsentPages::present(bool with_empty, std::vector<Run>* runs) {
  MutexLock lock(mutex_);
  if (!with_empty && !empty_are_absent_ && !(empty_are_absent_ = make_empty_absent())) return false;
  for (size_t group = 0; group < absent_in_.size(); ++group) {
    const size_t begin = group * kGroupPages * kPageBytes;
    const size_t end = std::min(begin + kGroupPages * kPageBytes, bytes_);
    const size_t absent = absent_in_[group].load(std::memory_order_relaxed);
    if (absent == (end - begin) / kPageBytes) continue;
    if (absent == 0) {
      append(runs, {begin, end - begin});
      continue;
    }
    for (size_t at = begin; at < end; at += kPageBytes) {
      if (!is_absent(at)) append(runs, {at, kPageBytes});
    }
  }
  return true;
}

void AbsentPages::drop(const Run& run, std::vector<Run>* stay) {
  MutexLock lock(mutex_);
  if (!faults_ && !(faults_ = tracker_.watch(address_, bytes_, true))) return append(stay, run);
  const size_t end = std::min(whole_pages(run.at + run.bytes), bytes_);
  for (size_t at = run.at; at < end;) {
    while (at < end && is_absent(at)) at += kPageBytes;
    const size_t begin = at;
    while (at < end && !is_absent(at)) at += kPageBytes;
    if (begin != at) drop_present({begin, at - begin}, stay);
  }
  free_tables({run.at, end - run.at});
}

// Moved pages leave empty page tables, which each look for written pages walks.
void AbsentPages::free_tables(const Run& run) {
  const size_t end = run.at + run.bytes;
  for (size_t at = run.at; run.bytes >= kLargePage && at < end;) {
    const Run absent = run_at(at, end - at);
    if (absent.bytes >= kLargePage) (void)madvise(address_ + at, absent.bytes, MADV_DONTNEED);
    at += std::max(absent.bytes, kPageBytes);
  }
}

// A page that is compared in place could be written to between the comparison and the drop. So the
// pages are moved first: from then on an access faults, and waits for mutex_.
void AbsentPages::drop_present(const Run& run, std::vector<Run>* stay) {
  if (!tracker_.move_out(address_ + run.at, spare_ + run.at, run.bytes)) return append(stay, run);
  mark(run, State::kAbsent);
  for (const Run& changed : differing(run)) {
    mark(changed, State::kAside);
    (void)put_back_locked(changed);
    append(stay, changed);
  }
  free_spare(run);
}

// Frees what is not aside.
void AbsentPages::free_spare(const Run& run) {
  const size_t end = run.at + run.bytes;
  for (size_t at = run.at; at < end; at += kPageBytes) {
    const size_t begin = at;
    while (at < end && state(at) != State::kAside) at += kPageBytes;
    if (at != begin) empty(spare_ + begin, at - begin);
  }
}

// Those of the moved pages that differ from `known_`.
std::vector<Run> AbsentPages::differing(const Run& run) const {
  std::vector<Run> present;
  if (!tracker_.present(spare_ + run.at, run.bytes, &present)) present = {{0, run.bytes}};
  for (Run& part : present) part.at += run.at;
  const std::vector<Run> pieces = pieces_of(present, kInstallBytes);
  std::vector<std::vector<Run>> found(pieces.size());
  run_parallel(pieces.size(), [&](size_t index) {
    const Run& piece = pieces[index];
    for (size_t at = piece.at; at < piece.at + piece.bytes; at += kPageBytes) {
      if (std::memcmp(spare_ + at, known_ + at, kPageBytes) != 0) {
        append(&found[index], {at, kPageBytes});
      }
    }
  });
  std::vector<Run> all;
  for (const std::vector<Run>& part : found) {
    for (const Run& changed : part) append(&all, changed);
  }
  return all;
}

// Of pages that are aside, which have the only copy of their bytes. Those for which the kernel has
// no memory stay aside. A page is marked before it is there, as in install_locked().
bool AbsentPages::put_back_locked(const Run& run) {
  mark(run, State::kHere);
  const size_t put = tracker_.put_pages(address_ + run.at, spare_ + run.at, run.bytes, true);
  if (put < run.bytes) mark({run.at + put, run.bytes - put}, State::kAside);
  return put == run.bytes;
}

bool AbsentPages::put_back() {
  for (int attempt = 0; aside_.load(std::memory_order_acquire) != 0; ++attempt) {
    if (attempt == kAttempts) {
      tell_once(address_, CUDA_ERROR_OUT_OF_MEMORY);
      return false;
    }
    if (attempt != 0) std::this_thread::sleep_for(kPause);
    MutexLock lock(mutex_);
    for (size_t at = 0; at < bytes_; at += kPageBytes) {
      if (state(at) != State::kAside) continue;
      if (!put_back_locked({at, kPageBytes})) break;
      free_spare({at, kPageBytes});
    }
  }
  return true;
}

// For pages of one state.
void AbsentPages::mark(const Run& run, State to) {
  const State from = state(run.at);
  const size_t end = (run.at + run.bytes) / kPageBytes;
  for (size_t page = run.at / kPageBytes; page < end;) {
    const size_t group = page / kGroupPages;
    const size_t stop = std::min(end, (group + 1) * kGroupPages);
    const size_t pages = stop - page;
    for (; page < stop; ++page) absent_[page].store(to, std::memory_order_release);
    if (from == State::kHere) absent_in_[group] += pages, count_ += pages;
    if (to == State::kHere) absent_in_[group] -= pages, count_ -= pages;
    if (from == State::kAside) aside_ -= pages;
    if (to == State::kAside) aside_ += pages;
  }
}

void AbsentPages::install(const Run& run, const std::byte* from) {
  MutexLock lock(mutex_);
  for (size_t at = run.at; at < run.at + run.bytes;) {
    const Run absent = run_at(at, run.at + run.bytes - at);
    if (absent.bytes != 0) install_locked(absent, from + (at - run.at));
    at += std::max(absent.bytes, kPageBytes);
  }
}

// `from` has whole pages. A page is marked before it is there: then a write that follows at once is
// not taken for one of an absent page.
void AbsentPages::install_locked(const Run& run, const std::byte* from) {
  run_parallel((run.bytes + kInstallBytes - 1) / kInstallBytes, [&](size_t index) {
    const size_t begin = run.at + index * kInstallBytes;
    const size_t length = whole_pages(std::min(kInstallBytes, run.at + run.bytes - begin));
    std::memcpy(known_ + begin, from + (begin - run.at), length);
    mark({begin, length}, State::kHere);
    const size_t put = tracker_.put_pages(address_ + begin, from + (begin - run.at), length);
    if (put < length) mark({begin + put, length - put}, State::kAbsent);
  });
}

}  // namespace rcuda::client
