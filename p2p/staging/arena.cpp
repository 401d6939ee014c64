#include "p2p/staging/arena.h"

#include <algorithm>
#include <iterator>

namespace rcuda::p2p {

std::optional<uint64_t> Arena::find(uint64_t bytes, uint64_t from) const {
  auto hole = holes_.upper_bound(from);
  if (hole != holes_.begin()) --hole;
  for (; hole != holes_.end(); ++hole) {
    const uint64_t start = std::max(hole->first, from);
    const uint64_t end = hole->first + hole->second;
    if (start <= end && bytes <= end - start) return start;
  }
  return std::nullopt;
}

std::optional<uint64_t> Arena::reserve(uint64_t bytes) {
  if (bytes > bytes_) return std::nullopt;
  const uint64_t want = rounded(bytes);
  std::optional<uint64_t> start = find(want, next_);
  if (!start) start = find(want, 0);
  if (!start) return std::nullopt;
  const auto hole = std::prev(holes_.upper_bound(*start));
  const uint64_t end = hole->first + hole->second;
  hole->second = *start - hole->first;
  if (hole->second == 0) holes_.erase(hole);
  const uint64_t behind = *start + want;
  if (behind < end) holes_[behind] = end - behind;
  if (fit_ == Fit::kNext) next_ = behind;
  return start;
}

void Arena::release(uint64_t offset, uint64_t bytes) {
  uint64_t length = rounded(bytes);
  if (length == 0) return;
  auto next = holes_.lower_bound(offset);
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
      holes_.erase(before);
    }
  }
  if (next != holes_.end() && offset + length == next->first) {
    length += next->second;
    holes_.erase(next);
  }
  holes_[offset] = length;
}

}  // namespace rcuda::p2p
