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

}  // namespace

WriteTracker* WriteTracker::open() {
  if (settings().managed.get() == "compared") return nullptr;
  const auto refused = [](const char* what) -> WriteTracker* {
    RCUDA_DEBUG(
        "%s is not available (%s): the program's writes to managed memory are found by comparing "
        "bytes, which is slower",
        what, std::strerror(errno));
    return nullptr;
  };
  // The kernel itself handles the write-protection faults, so the unprivileged mode is enough.
  UniqueFd faults(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
  if (!faults) return refused("userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kWriteProtectAsync | kWriteProtectUnpopulated;
  if (ioctl(faults.get(), UFFDIO_API, &api) != 0) return refused("asynchronous write protection");
  UniqueFd pagemap(::open(proc_self("pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) return refused("/proc/self/pagemap");
  return new WriteTracker(faults.release(), pagemap.release());
}

WriteTracker* WriteTracker::get() {
  static WriteTracker* const instance = open();
  return instance;
}

bool WriteTracker::watch(void* address, size_t bytes) {
  uffdio_register range{};
  range.range.start = reinterpret_cast<uintptr_t>(address);
  range.range.len = bytes;
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl(faults_, UFFDIO_REGISTER, &range) == 0;
}

bool WriteTracker::take(const void* address, size_t bytes, std::vector<Run>* runs, bool protect) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::array<PageRegion, 512> regions;
  ScanArgument scan{};
  scan.size = sizeof scan;
  scan.flags = protect ? kProtectMatching | kCheckAsync : 0;
  scan.start = begin;
  scan.end = begin + whole_pages(bytes);
  scan.regions = reinterpret_cast<uintptr_t>(regions.data());
  scan.region_count = regions.size();
  scan.category_mask = kPageIsWritten;
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

}  // namespace rcuda::client
