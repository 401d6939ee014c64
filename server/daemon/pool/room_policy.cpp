#include "server/daemon/pool/room_policy.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace rcuda::server {
namespace {

// When the candidate may be parked for this need.
RoomTime free_at(const RoomCandidate& candidate, const RoomNeed& need) {
  if (candidate.priority < need.priority) return candidate.busy_until;
  return std::max(candidate.busy_until, candidate.stays_until);
}

// Subtracts `bytes` from `missing`. Returns whether this changed anything.
bool cover(const DeviceBytes& bytes, DeviceBytes* missing) {
  bool helps = false;
  for (auto& [device, left] : *missing) {
    const auto found = bytes.find(device);
    const uint64_t gives = found == bytes.end() ? 0 : std::min(left, found->second);
    helps = helps || gives > 0;
    left -= gives;
  }
  return helps;
}

bool is_covered(const DeviceBytes& missing) {
  return std::ranges::all_of(missing, [](const auto& entry) { return entry.second == 0; });
}

}  // namespace

RoomChoice choose_victims(const std::vector<RoomCandidate>& candidates, const RoomNeed& need,
                          RoomTime now) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t index) {
    return std::tuple(candidates[index].priority, candidates[index].used_at);
  });
  RoomChoice choice;
  DeviceBytes missing = need.missing, missing_later = need.missing;
  for (const size_t index : order) {
    const RoomCandidate& candidate = candidates[index];
    const RoomTime at = free_at(candidate, need);
    if (at <= now) {
      if (cover(candidate.bytes, &missing)) choice.victims.push_back(index);
      (void)cover(candidate.bytes, &missing_later);
    } else if (cover(candidate.bytes, &missing_later)) {
      choice.later = std::min(choice.later.value_or(at), at);
    }
  }
  if (is_covered(missing)) {
    choice.later.reset();
  } else {
    choice.victims.clear();
    if (!is_covered(missing_later)) choice.later.reset();
  }
  return choice;
}

}  // namespace rcuda::server
