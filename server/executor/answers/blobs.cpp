#include "server/executor/answers/blobs.h"

#include <algorithm>
#include <utility>

namespace rcuda::server {

uint32_t Blobs::keep(api::Blob blob) {
  while (!blobs_.empty() && (blobs_.size() >= kMost || bytes_ + blob.size() > api::kMaxBlobBytes)) {
    bytes_ -= blobs_.begin()->second.size();
    blobs_.erase(blobs_.begin());
  }
  bytes_ += blob.size();
  if (++last_ == 0) ++last_;
  blobs_.insert_or_assign(last_, std::move(blob));
  return last_;
}

std::span<const std::byte> Blobs::read(uint32_t number, uint64_t offset, size_t room) const {
  const auto found = blobs_.find(number);
  if (found == blobs_.end() || offset >= found->second.size()) return {};
  const auto rest = std::span(found->second).subspan(offset);
  return rest.first(std::min(room, rest.size()));
}

void Blobs::drop_at(uint32_t number, uint64_t end) {
  const auto found = blobs_.find(number);
  if (found == blobs_.end() || found->second.size() != end) return;
  bytes_ -= found->second.size();
  blobs_.erase(found);
}

}  // namespace rcuda::server
