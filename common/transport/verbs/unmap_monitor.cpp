#include "common/transport/verbs/unmap_monitor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mappings.h"
#include "common/base/pages.h"
#include "common/base/start_thread.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace rcuda::transport::verbs {
namespace {

bool watch_pages(int fd, uintptr_t begin, uintptr_t end) {
  uffdio_register request{};
  request.range = {begin, end - begin};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  return ::ioctl(fd, UFFDIO_REGISTER, &request) == 0;
}

// Whether every page of the range belongs to a writable private anonymous mapping. If so, widens
// the range to whole mappings.
bool widen_to_mappings(uintptr_t* begin, uintptr_t* end) {
  constexpr int kNeeded = PROT_READ | PROT_WRITE;
  const std::vector<MappedPart> parts = whole_mappings_in(*begin, *end);
  if (!cover(parts, *begin, *end)) return false;
  for (const MappedPart& part : parts) {
    if ((part.protection & kNeeded) != kNeeded || part.is_shared || part.inode != 0) return false;
  }
  *begin = std::min<uintptr_t>(*begin, parts.front().begin);
  *end = std::max<uintptr_t>(*end, parts.back().end);
  return true;
}

}  // namespace

UnmapMonitor* UnmapMonitor::get() {
  static UnmapMonitor* const monitor = [] {
    auto* made = new UnmapMonitor;
    if (made->open()) return made;
    delete made;
    return static_cast<UnmapMonitor*>(nullptr);
  }();
  return monitor != nullptr && monitor->owner_ == ::getpid() ? monitor : nullptr;
}

bool UnmapMonitor::open() {
  fd_.reset(
      static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                 UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (!fd_ || ::ioctl(fd_.get(), UFFDIO_API, &api) != 0) {
    RCUDA_INFO("registrations of pageable memory are not kept: userfaultfd: %s",
               std::strerror(errno));
    return false;
  }
  void* page =
      ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  own_page_ = reinterpret_cast<uintptr_t>(page);
  *static_cast<volatile char*>(page) = 1;
  if (!watch_pages(fd_.get(), own_page_, own_page_ + page_bytes()) || change_under_way()) {
    ::munmap(page, page_bytes());
    return false;
  }
  owner_ = ::getpid();
  std::thread thread;
  const Status started = start_thread(&thread, [this] { run(); });
  if (!started.ok()) {
    RCUDA_INFO("registrations of pageable memory are not kept: %s", started.context().c_str());
    ::munmap(page, page_bytes());
    return false;
  }
  thread.detach();
  return true;
}

void UnmapMonitor::run() {
  while (true) {
    pollfd entry{fd_.get(), POLLIN, 0};
    if (::poll(&entry, 1, -1) < 0 && errno != EINTR) return;
    MutexLock lock(mutex_);
    drain_locked();
  }
}

void UnmapMonitor::drain_locked() {
  uffd_msg message;
  while (::read(fd_.get(), &message, sizeof message) == sizeof message) {
    switch (message.event) {
      case UFFD_EVENT_UNMAP:
        invalidate_locked(message.arg.remove.start, message.arg.remove.end);
        for (Range& range : poisoned_) {
          if (range.begin >= message.arg.remove.start && range.end <= message.arg.remove.end) {
            range = {};
          }
        }
        break;
      case UFFD_EVENT_REMOVE:
        invalidate_locked(message.arg.remove.start, message.arg.remove.end);
        poison_locked(message.arg.remove.start, message.arg.remove.end);
        break;
      case UFFD_EVENT_REMAP:
        invalidate_locked(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
        break;
      default:
        break;
    }
  }
}

void UnmapMonitor::invalidate_locked(uintptr_t begin, uintptr_t end) {
  for (Range& range : ranges_) {
    if (range.used && range.meets(begin, end)) range.valid = false;
  }
}

// If the table is full, entries are merged: a range that is needlessly not watched is only slower.
void UnmapMonitor::poison_locked(uintptr_t begin, uintptr_t end) {
  for (Range& range : poisoned_) {
    if (range.used && begin <= range.end && range.begin <= end) {
      range.begin = std::min(range.begin, begin);
      range.end = std::max(range.end, end);
      return;
    }
  }
  for (Range& range : poisoned_) {
    if (!range.used) {
      range = {begin, end, begin, end, true, false};
      return;
    }
  }
  poisoned_[0].begin = std::min(poisoned_[0].begin, begin);
  poisoned_[0].end = std::max(poisoned_[0].end, end);
}

// Between a change of watched memory and the reading of its event, the kernel refuses some
// operations on watched memory.
bool UnmapMonitor::change_under_way() {
  uffdio_writeprotect request{};
  request.range = {own_page_, page_bytes()};
  return ::ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request) != 0;
}

int UnmapMonitor::watch(uintptr_t begin, size_t bytes) {
  const uintptr_t from = page_of(begin);
  const uintptr_t to = whole_pages(begin + bytes);
  MutexLock watching(watching_);
  // Watching a part of a mapping would split the mapping, and the program's mremap() would then
  // fail.
  uintptr_t wide_from = from, wide_to = to;
  if (!widen_to_mappings(&wide_from, &wide_to)) return -1;
  int found = -1;
  {
    MutexLock lock(mutex_);
    drain_locked();
    for (const Range& range : poisoned_) {
      if (range.used && range.meets(from, to)) return -1;
    }
    for (int i = 0; i < kMax && found < 0; ++i) {
      if (!ranges_[i].used) found = i;
    }
    if (found < 0) return -1;
    ranges_[found] = {from, to, wide_from, wide_to, true, true};
  }
  // A change before this line may have put other memory there; a later change is reported.
  uintptr_t again_from = from, again_to = to;
  if (watch_pages(fd_.get(), wide_from, wide_to) && widen_to_mappings(&again_from, &again_to) &&
      holds(found)) {
    return found;
  }
  release_watching(found);
  return -1;
}

bool UnmapMonitor::holds(int watch) {
  MutexLock lock(mutex_);
  drain_locked();
  return !change_under_way() && ranges_[watch].valid;
}

bool UnmapMonitor::lost(int watch) {
  MutexLock lock(mutex_);
  return !ranges_[watch].valid;
}

void UnmapMonitor::release(int watch) {
  MutexLock watching(watching_);
  release_watching(watch);
}

void UnmapMonitor::release_watching(int watch) {
  Range range;
  bool shared = false;
  {
    MutexLock lock(mutex_);
    drain_locked();
    range = std::exchange(ranges_[watch], {});
    for (const Range& other : ranges_) {
      shared = shared || (other.used && other.wide_begin < range.wide_end &&
                          range.wide_begin < other.wide_end);
    }
  }
  // A range that has changed stays watched, so that its unmapping is reported.
  if (!range.valid || shared) return;
  uffdio_range pages{range.wide_begin, range.wide_end - range.wide_begin};
  ::ioctl(fd_.get(), UFFDIO_UNREGISTER, &pages);
}

}  // namespace rcuda::transport::verbs
