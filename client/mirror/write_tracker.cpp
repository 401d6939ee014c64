#include "client/mirror/write_tracker.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/settings/settings.h"
#include "common/base/log.h"
#include "common/base/pages.h"
#include "common/base/proc_self.h"
#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

// From include/uapi/linux/userfaultfd.h and include/uapi/linux/fs.h of Linux 6.7. Installed headers
// may be older.
constexpr uint64_t kWriteProtectUnpopulated = 1u << 13;  // UFFD_FEATURE_WP_UNPOPULATED
constexpr uint64_t kWriteProtectAsync = 1u << 15;        // UFFD_FEATURE_WP_ASYNC

constexpr uint64_t kPageIsWritten = 1u << 1;  // PAGE_IS_WRITTEN
constexpr uint64_t kPageIsPresent = 1u << 3;  // PAGE_IS_PRESENT
constexpr uint64_t kPageIsSwapped = 1u << 4;  // PAGE_IS_SWAPPED

constexpr uint64_t kProtectMatching = 1u << 0;  // PM_SCAN_WP_MATCHING
constexpr uint64_t kCheckAsync = 1u << 1;       // PM_SCAN_CHECK_WPASYNC

struct PageRegion {  // struct page_region
  uint64_t start, end, categories;
};
struct ScanArgument {  // struct pm_scan_arg
  uint64_t size, flags, start, end, walk_end, regions, region_count, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);  // PAGEMAP_SCAN

struct PoisonArgument {  // struct uffdio_poison, Linux 6.6
  uffdio_range range;
  uint64_t mode;
  int64_t updated;
};
constexpr unsigned long kPoison = _IOWR(UFFDIO, 0x08, PoisonArgument);  // UFFDIO_POISON

// From USERFAULTFD_IOC_NEW of include/uapi/linux/userfaultfd.h, Linux 6.1.
constexpr unsigned long kNewFaults = _IO(0xAA, 0x00);

UniqueFd open_faults(int flags) {
  return UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | flags)));
}

// One that also tells of faults in system calls; none if this process may not have it.
UniqueFd open_for_all_faults() {
  UniqueFd faults = open_faults(0);
  if (faults) return faults;
  const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  return device ? UniqueFd(ioctl(device.get(), kNewFaults, O_CLOEXEC)) : UniqueFd();
}

}  // namespace

WriteTracker* WriteTracker::open() {
  if (settings().managed_mode() == ManagedMode::kCompared) return nullptr;
  const auto refused = [](const char* what) -> WriteTracker* {
    RCUDA_DEBUG("writes to managed memory are found by comparing: %s: %s", what,
                std::strerror(errno));
    return nullptr;
  };
  UniqueFd faults;
  if (settings().managed_mode() != ManagedMode::kTracked) faults = open_for_all_faults();
  const bool serves_faults = static_cast<bool>(faults);
  // Write protection needs no handling of faults, so the mode that needs no privilege will do.
  if (!faults) faults = open_faults(UFFD_USER_MODE_ONLY);
  if (!faults) return refused("userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kWriteProtectAsync | kWriteProtectUnpopulated;
  if (ioctl(faults.get(), UFFDIO_API, &api) != 0) return refused("asynchronous write protection");
  UniqueFd pagemap(::open(proc_self("pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) return refused("/proc");
  RCUDA_DEBUG("managed memory is fetched %s",
              serves_faults ? "when it is accessed"
                            : "after each wait: this process may not serve faults of system calls, "
                              "or RCUDA_MANAGED=tracked");
  return new WriteTracker(faults.release(), pagemap.release(), serves_faults);
}

WriteTracker* WriteTracker::get() {
  static WriteTracker* const instance = open();
  return instance;
}

bool WriteTracker::watch(void* address, size_t bytes, bool empty_fault) {
  uffdio_register range{};
  range.range.start = reinterpret_cast<uintptr_t>(address);
  range.range.len = bytes;
  range.mode = UFFDIO_REGISTER_MODE_WP | (empty_fault ? UFFDIO_REGISTER_MODE_MISSING : 0);
  return ioctl(faults_, UFFDIO_REGISTER, &range) == 0;
}

bool WriteTracker::take(const void* address, size_t bytes, std::vector<Run>* runs, bool protect) {
  return scan(address, bytes, protect ? kProtectMatching | kCheckAsync : 0, kPageIsWritten, runs);
}

bool WriteTracker::present(const void* address, size_t bytes, std::vector<Run>* runs) {
  return scan(address, bytes, 0, 0, runs);
}

// The runs of pages of the category that are not empty.
bool WriteTracker::scan(const void* address, size_t bytes, uint64_t flags, uint64_t category,
                        std::vector<Run>* runs) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::array<PageRegion, 512> regions;
  ScanArgument scan{};
  scan.size = sizeof scan;
  scan.flags = flags;
  scan.start = begin;
  scan.end = begin + whole_pages(bytes);
  scan.regions = reinterpret_cast<uintptr_t>(regions.data());
  scan.region_count = regions.size();
  scan.category_mask = category;
  scan.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
  while (scan.start < scan.end) {
    const int found = ioctl(pagemap_, kPagemapScan, &scan);
    if (found < 0) return false;
    for (int i = 0; i < found; ++i) {
      const PageRegion& region = regions[static_cast<size_t>(i)];
      runs->push_back({region.start - begin,
                       std::min<size_t>(region.end - begin, bytes) - (region.start - begin)});
    }
    if (scan.walk_end <= scan.start) return false;
    scan.start = scan.walk_end;
  }
  return true;
}

void* WriteTracker::next_fault() {
  while (true) {
    uffd_msg message;
    const ssize_t got = ::read(faults_, &message, sizeof message);
    if (got == sizeof message) {
      if (message.event != UFFD_EVENT_PAGEFAULT) continue;
      return reinterpret_cast<void*>(message.arg.pagefault.address);
    }
    if (got < 0 && errno != EINTR && errno != EAGAIN) return nullptr;
  }
}

bool WriteTracker::put_zeros(void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (size_t done = 0; done < bytes;) {
    uffdio_zeropage zeros{};
    zeros.range = {begin + done, bytes - done};
    if (ioctl(faults_, UFFDIO_ZEROPAGE, &zeros) == 0) break;
    if (zeros.zeropage > 0) {
      done += static_cast<size_t>(zeros.zeropage);
    } else if (errno == EEXIST) {
      done += page_bytes();
    } else if (errno == ENOMEM) {
      return false;
    } else if (errno != EAGAIN) {
      break;  // the memory is gone
    }
  }
  wake(address, bytes);
  return true;
}

size_t WriteTracker::put_pages(void* address, const void* from, size_t bytes, bool written) {
  for (size_t done = 0; done < bytes;) {
    uffdio_copy copy{};
    copy.dst = reinterpret_cast<uintptr_t>(address) + done;
    copy.src = reinterpret_cast<uintptr_t>(from) + done;
    copy.len = bytes - done;
    copy.mode = written ? 0 : UFFDIO_COPY_MODE_WP;
    if (ioctl(faults_, UFFDIO_COPY, &copy) == 0) break;
    if (copy.copy > 0) {
      done += static_cast<size_t>(copy.copy);
    } else if (errno == EEXIST) {
      wake(reinterpret_cast<void*>(copy.dst), page_bytes());
      done += page_bytes();
    } else if (errno == ENOENT || errno == ESRCH) {  // the memory is gone
      wake(reinterpret_cast<void*>(copy.dst), bytes - done);
      break;
    } else if (errno != EAGAIN) {
      return done;
    }
  }
  return bytes;
}

bool WriteTracker::poison(void* address, size_t bytes) {
  PoisonArgument argument{};
  argument.range = {reinterpret_cast<uintptr_t>(address), bytes};
  while (ioctl(faults_, kPoison, &argument) != 0) {
    if (errno != EAGAIN) return false;
    argument.updated = 0;
  }
  return true;
}

void WriteTracker::wake(void* address, size_t bytes) {
  uffdio_range range = {reinterpret_cast<uintptr_t>(address), bytes};
  (void)ioctl(faults_, UFFDIO_WAKE, &range);
}

// Without an event for it, the pages leave the userfaultfd, which keeps the range that they were
// in.
bool WriteTracker::move_out(void* address, void* to, size_t bytes) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  return mremap(address, bytes, bytes, kFlags, to) == to;
}

}  // namespace rcuda::client
