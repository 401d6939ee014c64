#include "p2p/paths/arena.h"

namespace rcuda::p2p {

std::optional<uint64_t> Arena::reserve(uint64_t bytes) {
  if (bytes > bytes_) return std::nullopt;
  const uint64_t want = rounded(bytes);
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    const auto [offset, length] = *hole;
    if (length < want) continue;
    holes_.erase(hole);
    if (length > want) holes_[offset + want] = length - want;
    used_ += want;
    return offset;
  }
  return std::nullopt;
}

void Arena::release(uint64_t offset, uint64_t bytes) {
  uint64_t length = rounded(bytes);
  if (length == 0) return;
  used_ -= length;
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
