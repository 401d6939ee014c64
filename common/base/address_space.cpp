#include "common/base/address_space.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/resource.h>

#include "common/base/mappings.h"
#include "common/base/proc_self.h"

namespace rcuda {
namespace {

// The stack of the main thread grows downwards, so a range below it counts as used. The range is
// twice as large as the stack's limit, within these bounds; without a limit, kMostStackRoom.
constexpr uint64_t kLeastStackRoom = 64ull << 20;
constexpr uint64_t kMostStackRoom = 1ull << 30;

uint64_t stack_room() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kMostStackRoom;
  }
  return std::clamp<uint64_t>(limit.rlim_cur * 2, kLeastStackRoom, kMostStackRoom);
}

}  // namespace

Result<std::vector<AddressRange>> own_mappings() {
  std::vector<AddressRange> mappings;
  const bool opened = each_mapping([&](const MappedPart& part, const char* path) {
    AddressRange& mapping = mappings.emplace_back(AddressRange{part.begin, part.end});
    if (std::strcmp(path, "[stack]") == 0) {
      mapping.begin -= std::min(mapping.begin, stack_room());
    }
    return true;
  });
  if (!opened) return Status::from_errno(errno, "cannot read " + proc_self("maps"));
  sort_by_begin(&mappings);
  return mappings;
}

void sort_by_begin(std::vector<AddressRange>* ranges) {
  std::sort(ranges->begin(), ranges->end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
}

std::vector<AddressRange> gaps(const std::vector<AddressRange>& used, uint64_t from, uint64_t to) {
  std::vector<AddressRange> free;
  uint64_t at = from;
  for (const AddressRange& range : used) {
    if (range.end <= at) continue;
    if (range.begin >= to) break;
    if (range.begin > at) free.push_back({at, range.begin});
    at = range.end;
  }
  if (at < to) free.push_back({at, to});
  return free;
}

}  // namespace rcuda
