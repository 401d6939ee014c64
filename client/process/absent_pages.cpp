#include "client/process/absent_pages.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "client/channel/task_pool.h"
#include "common/base/log.h"
#include "common/base/start_thread.h"

namespace rcuda::client {
namespace {

// Of a fetch: the first of accesses that follow no other, and the largest.
constexpr size_t kLeastPiece = 64 << 10;
constexpr size_t kMostPiece = 16 << 20;
// Of memory that one thread installs at a time.
constexpr size_t kInstallBytes = 512 << 10;

std::mutex ranges_mutex;
// By the address behind the range. Never destroyed, as the thread that serves faults does not end.
std::map<const std::byte*, std::shared_ptr<AbsentPages>>& ranges() {
  static auto* instance = new std::map<const std::byte*, std::shared_ptr<AbsentPages>>;
  return *instance;
}

}  // namespace

AbsentPages::AbsentPages(WriteTracker& tracker, std::byte* address, size_t bytes, std::byte* known,
                         Fetch fetch)
    : tracker_(tracker),
      address_(address),
      bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
      known_(known),
      fetch_(std::move(fetch)),
      absent_(bytes_ / kPageBytes) {}

bool AbsentPages::possible() {
  const WriteTracker* const tracker = WriteTracker::get();
  return tracker && tracker->serves_faults() && sysconf(_SC_PAGESIZE) == kPageBytes;
}

std::shared_ptr<AbsentPages> AbsentPages::make(WriteTracker& tracker, std::byte* address,
                                               size_t bytes, std::byte* known, Fetch fetch) {
  if (!possible()) return nullptr;
  static const bool serving = start_serving(tracker);
  if (!serving) return nullptr;
  std::shared_ptr<AbsentPages> made(
      new AbsentPages(tracker, address, bytes, known, std::move(fetch)));
  std::lock_guard lock(ranges_mutex);
  ranges()[address + made->bytes_] = made;
  return made;
}

void AbsentPages::stop() {
  {
    std::lock_guard lock(ranges_mutex);
    ranges().erase(address_ + bytes_);
  }
  std::lock_guard lock(mutex_);
  fetch_ = nullptr;
}

bool AbsentPages::start_serving(WriteTracker& tracker) {
  std::thread thread;
  const Status started = start_thread(&thread, [&tracker] { serve_all(tracker); });
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
      std::lock_guard lock(ranges_mutex);
      const auto found = ranges().upper_bound(at);
      if (found != ranges().end() && at >= found->second->address_) range = found->second;
    }
    if (range) {
      range->serve(static_cast<size_t>(at - range->address_));
    } else {  // freed meanwhile
      tracker.put_zeros(at, kPageBytes);
    }
  }
}

// The absent pages from there on.
Run AbsentPages::run_at(size_t at, size_t most) const {
  size_t end = at;
  while (end < bytes_ && end - at < most && is_absent(end)) end += kPageBytes;
  return {at, end - at};
}

void AbsentPages::serve(size_t at) {
  std::lock_guard lock(mutex_);
  at = at / kPageBytes * kPageBytes;
  if (!is_absent(at) || !fetch_) {
    // Nobody has written there yet, or another fault was served with this page.
    tracker_.put_zeros(address_ + at, kPageBytes);
    return;
  }
  piece_ = at == next_ ? std::clamp(2 * piece_, kLeastPiece, kMostPiece) : kLeastPiece;
  const Run run = run_at(at, piece_);
  next_ = run.at + run.bytes;
  static std::byte* const buffer = [] {
    void* memory = mmap(nullptr, kMostPiece, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }();
  const CUresult result = buffer ? fetch_(buffer, run) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    install_locked(run, buffer);
    return;
  }
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    RCUDA_ERROR("managed memory at %p could not be fetched (CUDA error %d): it is zero",
                static_cast<void*>(address_ + at), static_cast<int>(result));
  }
  absent_[at / kPageBytes].store(0, std::memory_order_release);
  --count_;
  tracker_.put_zeros(address_ + at, kPageBytes);
}

bool AbsentPages::drop(const Run& run) {
  std::lock_guard lock(mutex_);
  if (!faults_ && !(faults_ = tracker_.watch(address_, bytes_, true))) return false;
  const size_t end =
      std::min((run.at + run.bytes + kPageBytes - 1) / kPageBytes * kPageBytes, bytes_);
  for (size_t at = run.at; at < end;) {
    at += run_at(at, end - at).bytes;
    const size_t begin = at;
    while (at < end && !is_absent(at)) at += kPageBytes;
    if (begin == at) continue;
    if (madvise(address_ + begin, at - begin, MADV_DONTNEED) != 0) return false;
    for (size_t page = begin / kPageBytes; page < at / kPageBytes; ++page) {
      absent_[page].store(1, std::memory_order_release);
    }
    count_ += (at - begin) / kPageBytes;
  }
  return true;
}

void AbsentPages::install(const Run& run, const std::byte* from) {
  std::lock_guard lock(mutex_);
  for (size_t at = run.at; at < run.at + run.bytes;) {
    const Run absent = run_at(at, run.at + run.bytes - at);
    if (absent.bytes != 0) install_locked(absent, from + (at - run.at));
    at += std::max(absent.bytes, kPageBytes);
  }
}

// `from` has whole pages.
void AbsentPages::install_locked(const Run& run, const std::byte* from) {
  run_parallel((run.bytes + kInstallBytes - 1) / kInstallBytes, [&](size_t index) {
    const size_t begin = index * kInstallBytes;
    const size_t length = std::min(kInstallBytes, run.bytes - begin);
    std::memcpy(known_ + run.at + begin, from + begin, length);
    for (size_t at = begin; at < begin + length; at += kPageBytes) {
      absent_[(run.at + at) / kPageBytes].store(0, std::memory_order_release);
    }
    count_ -= (length + kPageBytes - 1) / kPageBytes;
    tracker_.put_pages(address_ + run.at + begin, from + begin, length);
  });
}

}  // namespace rcuda::client
