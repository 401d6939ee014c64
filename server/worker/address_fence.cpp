#include "server/worker/address_fence.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include <sys/mman.h>
#include <sys/resource.h>

namespace rcuda::server {
namespace {

constexpr uint64_t kUserEnd = 0x7fff'ffff'f000;
// The room that stays free below the main thread's stack, which grows downwards.
constexpr uint64_t kLeastStackRoom = 64ull << 20;
constexpr uint64_t kMostStackRoom = 1ull << 30;

uint64_t stack_room() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kMostStackRoom;
  }
  return std::clamp<uint64_t>(limit.rlim_cur * 2, kLeastStackRoom, kMostStackRoom);
}

Result<std::vector<AddressRange>> own_mappings() {
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  if (!file) return Status::from_errno(errno, "/proc/self/maps");
  std::vector<AddressRange> mappings;
  char line[4096 + 256];
  while (std::fgets(line, sizeof line, file)) {
    AddressRange mapping;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64, &mapping.begin, &mapping.end) != 2) continue;
    if (std::strstr(line, "[stack]")) mapping.begin -= std::min(mapping.begin, stack_room());
    mappings.push_back(mapping);
  }
  std::fclose(file);
  std::sort(mappings.begin(), mappings.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  return mappings;
}

}  // namespace

wire::AddressWindow address_window(uint32_t index) {
  return {wire::kWindowBase + index * wire::kWindowBytes, wire::kWindowBytes};
}

bool overlap(const wire::AddressWindow& a, const wire::AddressWindow& b) {
  return a.base < b.base ? b.base - a.base < a.bytes : a.base - b.base < b.bytes;
}

std::vector<AddressRange> gaps(const std::vector<AddressRange>& mappings, uint64_t from,
                               uint64_t to) {
  std::vector<AddressRange> free;
  uint64_t at = from;
  for (const AddressRange& mapping : mappings) {
    if (mapping.end <= at) continue;
    if (mapping.begin >= to) break;
    if (mapping.begin > at) free.push_back({at, mapping.begin});
    at = mapping.end;
  }
  if (at < to) free.push_back({at, to});
  return free;
}

Result<std::vector<AddressRange>> raise_fence(const wire::AddressWindow& window) {
  Result<std::vector<AddressRange>> mappings = own_mappings();
  if (!mappings.ok()) return mappings.status();
  const uint64_t top = window.base + window.bytes;
  const std::vector<AddressRange> inside = gaps(*mappings, window.base, top);
  if (inside.size() != 1 || inside[0].end - inside[0].begin != window.bytes) {
    return Status(Code::kInvalidArgument, "this process already uses addresses of its window");
  }
  std::vector<AddressRange> closed = gaps(*mappings, top, kUserEnd);
  const uint64_t index = (window.base - wire::kWindowBase) / wire::kWindowBytes;
  const uint64_t pools = wire::kPoolBase + index * wire::kPoolBytes;
  for (const AddressRange& gap : gaps(*mappings, wire::kPoolBase, pools)) closed.push_back(gap);
  for (const AddressRange& gap : closed) {
    void* wanted = reinterpret_cast<void*>(gap.begin);
    void* got = ::mmap(wanted, gap.end - gap.begin, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) {
      const int error = errno;
      if (got != MAP_FAILED) ::munmap(got, gap.end - gap.begin);
      return Status::from_errno(error, "closing the addresses above the window");
    }
  }
  return closed;
}

}  // namespace rcuda::server
