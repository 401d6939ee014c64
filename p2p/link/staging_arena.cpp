#include "p2p/link/staging_arena.h"

#include <algorithm>
#include <bit>

#include "common/base/units.h"

namespace rcuda::p2p {
uint64_t StagingArena::bytes() const {
  uint64_t sum = 0;
  for (const auto& each : buffers_) {
    if (const auto buffer = each.lock()) sum += buffer->bytes();
  }
  return sum;
}

Result<std::shared_ptr<HostBuffer>> StagingArena::make_buffer(uint64_t bytes) {
  RCUDA_ASSIGN_OR_RETURN(auto buffer, HostBuffer::create(ops_, bytes, mappable_)
                                          .with_context("allocating " + exact_bytes_text(bytes) +
                                                        " of staging memory for peer copies"));
  buffers_.push_back(buffer);
  return buffer;
}

Result<Slice> StagingArena::take(uint64_t most_bytes) {
  const uint64_t limit = options_.inboxes_limit_bytes * slices_per_peer();
  std::erase_if(buffers_, [](const auto& buffer) { return buffer.expired(); });
  std::shared_ptr<HostBuffer> arena = arena_.lock();
  if (buffers_.empty()) {
    const uint64_t slices = std::max(options_.peers, 1u) * slices_per_peer();
    slice_bytes_ = std::clamp(
        std::bit_floor(std::max<uint64_t>(limit / slices, 1)), EngineOptions::kLeastInboxBytes,
        std::max(std::bit_floor(options_.inbox_bytes), EngineOptions::kLeastInboxBytes));
    RCUDA_ASSIGN_OR_RETURN(arena, make_buffer(slice_bytes_ * slices));
    arena_ = arena;
    used_ = 0;
  }
  uint64_t bytes =
      std::min(slice_bytes_, std::bit_floor(std::max(most_bytes, EngineOptions::kLeastInboxBytes)));
  if (arena && bytes <= arena->bytes() - used_) {
    const uint64_t offset = used_;
    used_ += bytes;
    return Slice{std::move(arena), offset, bytes};
  }
  const uint64_t free = limit - std::min(limit, this->bytes());
  while (bytes > free && bytes > EngineOptions::kLeastInboxBytes) bytes /= 2;
  if (bytes > free) {
    return Status(Code::kOutOfMemory, "this worker's limit of " + bytes_text(limit) +
                                          " of staging memory for peer copies is used up; name "
                                          "fewer servers in RCUDA_DEVICES");
  }
  RCUDA_ASSIGN_OR_RETURN(auto own, make_buffer(bytes));
  return Slice{std::move(own), 0, bytes};
}

}  // namespace rcuda::p2p
