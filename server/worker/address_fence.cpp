#include "server/worker/address_fence.h"

#include <cerrno>

#include <sys/mman.h>

#include "common/wire/address_ranges.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kUserEnd = 0x7fff'ffff'f000;
// Another thread may map memory between the reading of the mappings and the closing of a gap.
constexpr int kMostAttempts = 8;

// Adds what it has closed to `closed`. EEXIST: a gap is no longer free.
int close_gaps(const std::vector<AddressRange>& free, std::vector<AddressRange>* closed) {
  for (const AddressRange& gap : free) {
    void* wanted = reinterpret_cast<void*>(gap.begin);
    void* got = ::mmap(wanted, gap.end - gap.begin, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) {
      const int error = got == MAP_FAILED ? errno : EEXIST;
      if (got != MAP_FAILED) ::munmap(got, gap.end - gap.begin);
      return error;
    }
    closed->push_back(gap);
  }
  return 0;
}

}  // namespace

Result<std::vector<AddressRange>> raise_fence(const wire::AddressWindow& window) {
  const uint64_t top = window.base + window.bytes;
  std::vector<AddressRange> closed;
  for (int attempt = 1;; ++attempt) {
    const Result<std::vector<AddressRange>> mappings = own_mappings();
    if (!mappings.ok()) return mappings.status();
    if (attempt == 1) {
      const std::vector<AddressRange> inside = gaps(*mappings, window.base, top);
      if (inside.size() != 1 || inside[0].end - inside[0].begin != window.bytes) {
        return Status(Code::kInvalidArgument, "this process already uses addresses of its window");
      }
    }
    std::vector<AddressRange> free = gaps(*mappings, wire::kFenceBegin, window.base);
    for (const AddressRange& gap : gaps(*mappings, top, kUserEnd)) free.push_back(gap);
    const int error = close_gaps(free, &closed);
    if (error == 0) return closed;
    if (error != EEXIST || attempt == kMostAttempts) {
      return Status::from_errno(error, "closing the addresses outside of the window");
    }
  }
}

}  // namespace rcuda::server
