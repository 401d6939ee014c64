#include "server/addresses/address_fence.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>
#include <sys/resource.h>

#include "common/base/units.h"
#include "common/wire/address_ranges.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kUserEnd = 0x7fff'ffff'f000;

// Maps free addresses inaccessible. Returns false, with errno set, if they are not free.
bool close_range(const AddressRange& range) {
  void* const wanted = reinterpret_cast<void*>(range.begin);
  void* const got =
      ::mmap(wanted, range.end - range.begin, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wanted) return true;
  if (got == MAP_FAILED) return false;
  ::munmap(got, range.end - range.begin);  // an old kernel took the address for a hint
  errno = EEXIST;
  return false;
}

// Returns the lowest address that the kernel chooses for a mapping. With the usual layout the
// kernel searches from the top down to the bottom, so the result is 0. With the legacy layout
// (setarch -L, vm.legacy_va_layout) the kernel searches upwards from a point in the middle, and
// never below this point. No other thread may map memory meanwhile.
Result<uint64_t> lowest_choice() {
  constexpr size_t kPage = 4096;
  void* places[2];
  for (void*& place : places) {
    place = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
      return Status::from_errno(errno, "probing the worker's address space with a page");
  }
  for (void* place : places) ::munmap(place, kPage);
  return places[1] > places[0] ? reinterpret_cast<uint64_t>(places[0]) : 0;
}

AddressRange range_of(const wire::AddressWindow& window) {
  return {window.base, window.base + window.bytes};
}

}  // namespace

Result<AddressFence> AddressFence::raise(const wire::AddressWindow& base) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < kUserEnd) {
    return Status(Code::kInvalidArgument,
                  "this server's virtual memory is limited to " + bytes_text(limit.rlim_cur) +
                      " (ulimit -v), but a worker reserves nearly the whole address space: start "
                      "rcuda-server with ulimit -v unlimited");
  }
  RCUDA_ASSIGN_OR_RETURN(const uint64_t lowest, lowest_choice());
  RCUDA_ASSIGN_OR_RETURN(std::vector<AddressRange> mappings, own_mappings());
  const AddressRange own = range_of(base);
  const std::vector<AddressRange> free = gaps(mappings, own.begin, own.end);
  if (free.size() != 1 || free[0].begin != own.begin || free[0].end != own.end) {
    return Status(Code::kUnavailable,
                  "the worker uses addresses that are reserved for its driver (its base)");
  }
  AddressFence fence;
  fence.inside_ = {base};
  fence.closed_ = gaps(mappings, wire::kFenceBegin, own.begin);
  for (const AddressRange& gap : gaps(mappings, own.end, kUserEnd)) fence.closed_.push_back(gap);
  for (const AddressRange& gap : fence.closed_) {
    if (!close_range(gap)) {
      return Status::from_errno(errno, "reserving the addresses outside of the worker's base");
    }
  }
  std::erase_if(fence.closed_, [&](const AddressRange& range) { return range.end <= lowest; });
  for (AddressRange& range : fence.closed_) range.begin = std::max(range.begin, lowest);
  return fence;
}

Status AddressFence::open(const wire::AddressWindow& window) {
  const AddressRange opened = range_of(window);
  const auto around = std::find_if(closed_.begin(), closed_.end(), [&](const AddressRange& range) {
    return range.begin <= opened.begin && opened.end <= range.end;
  });
  if (around == closed_.end() || window.bytes == 0) {
    return Status(Code::kInvalidArgument,
                  "the worker already uses addresses of the session's address window");
  }
  if (::munmap(reinterpret_cast<void*>(opened.begin), window.bytes) != 0) {
    return Status::from_errno(errno, "releasing the reserved addresses of the session's window");
  }
  const AddressRange whole = *around;
  auto at = closed_.erase(around);
  if (opened.end < whole.end) at = closed_.insert(at, {opened.end, whole.end});
  if (whole.begin < opened.begin) closed_.insert(at, {whole.begin, opened.begin});
  inside_.push_back(window);
  return {};
}

size_t AddressFence::close_holes() const {
  if (closed_.empty()) return 0;
  Result<std::vector<AddressRange>> mappings = own_mappings();
  if (!mappings.ok()) return 0;
  std::vector<AddressRange> used = std::move(mappings).value();
  for (const wire::AddressWindow& window : inside_) used.push_back(range_of(window));
  sort_by_begin(&used);
  // If another thread maps a hole first, close_range() fails, and the hole does not count.
  const std::vector<AddressRange> holes = gaps(used, wire::kFenceBegin, kUserEnd);
  return static_cast<size_t>(std::count_if(holes.begin(), holes.end(), close_range));
}

bool AddressFence::contains(uint64_t address, uint64_t bytes) const {
  return inside_.empty() ||
         std::any_of(inside_.begin(), inside_.end(), [&](const wire::AddressWindow& window) {
           return address >= window.base && address - window.base < window.bytes &&
                  bytes <= window.bytes - (address - window.base);
         });
}

}  // namespace rcuda::server
