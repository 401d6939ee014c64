#include "p2p/link/staging_arena.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/log.h"

namespace rcuda::p2p {
namespace {

constexpr uint64_t kPageBytes = 4096;

}  // namespace

Slice::~Slice() {
  if (arena_) arena_->give_back();
}

void Slice::swap(Slice& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  std::swap(offset_, other.offset_);
}

void StagingArena::give_back() {
  if (--slices_ > 0) return;
  buffers_.clear();
  bytes_ = 0;
}

Status StagingArena::make_buffer(uint64_t bytes, int numa_node) {
  Result<HostBuffer> buffer = HostBuffer::create(ops_, bytes, numa_node, mappable_);
  if (!buffer) return Status(buffer.status()).with_context("peer-to-peer staging memory");
  buffers_.push_back(*std::move(buffer));
  used_ = 0;
  bytes_ += bytes;
  return {};
}

Result<Slice> StagingArena::take(uint64_t most_bytes, uint64_t extra_bytes, int numa_node) {
  const uint64_t limit = options_.inboxes_limit_bytes * slices_per_peer();
  if (buffers_.empty()) {
    const uint64_t slices = std::max(options_.peers, 1u) * slices_per_peer();
    slice_bytes_ = std::clamp(
        std::bit_floor(std::max<uint64_t>(limit / slices, 1)), EngineOptions::kLeastInboxBytes,
        std::max(std::bit_floor(options_.inbox_bytes), EngineOptions::kLeastInboxBytes));
    // Half of the slices of an arena that peers cannot map are outboxes, each with one more page.
    const uint64_t pages = mappable_ == Mappable::kYes ? 0 : kPageBytes * slices / 2;
    RCUDA_RETURN_IF_ERROR(make_buffer(slice_bytes_ * slices + pages, numa_node));
  }
  uint64_t bytes =
      std::min(slice_bytes_, std::bit_floor(std::max(most_bytes, EngineOptions::kLeastInboxBytes)));
  if (bytes + extra_bytes > left()) {
    const uint64_t free = limit - std::min(limit, bytes_);
    while (bytes > free && bytes > EngineOptions::kLeastInboxBytes) bytes /= 2;
    if (bytes > free) {
      return Status(Code::kOutOfMemory, "the peer-to-peer staging limit of " + bytes_text(limit) +
                                            " is used up; use fewer servers in one session");
    }
    RCUDA_RETURN_IF_ERROR(make_buffer(bytes + extra_bytes, numa_node));
  }
  HostBuffer& buffer = buffers_.back();
  Slice slice(*this, buffer.data() + used_, bytes, buffer.fd(), used_);
  used_ += bytes + extra_bytes;
  ++slices_;
  return slice;
}

}  // namespace rcuda::p2p
