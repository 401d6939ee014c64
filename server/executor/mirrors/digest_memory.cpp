#include "server/executor/mirrors/digest_memory.h"

#include <algorithm>

namespace rcuda::server {
namespace {

constexpr uint64_t kPageBytes = 4096;
// The largest piece that is kept. It has the digests of 963 blocks (3.8 MiB) of mirrored memory.
// More mirrored memory takes so long to allocate that the time to allocate its digests does not
// matter.
constexpr uint64_t kMostKeptBytes = 4 * kPageBytes;
constexpr size_t kMostKept = 16;  // pieces

// Memory that may be kept has whole pages, so that later digests of about the same size can use it.
uint64_t size_for(uint64_t bytes) {
  const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return pages > kMostKeptBytes ? bytes : pages;
}

}  // namespace

DigestMemory::~DigestMemory() {
  for (const Kept& piece : kept_) free(piece);
}

void DigestMemory::free(const Kept& piece) {
  (void)driver_.cuMemFreeHost(piece.memory);
  meter_.give(MemoryMeter::kHost, piece.bytes);
}

void* DigestMemory::take(wire::ObjectId context, uint64_t bytes, CUresult* result) {
  bytes = size_for(bytes);
  *result = CUDA_SUCCESS;
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& piece) {
    return piece.context == context && piece.bytes == bytes;
  });
  if (kept != kept_.end()) {
    void* const memory = kept->memory;
    kept_.erase(kept);
    return memory;
  }
  if (!meter_.take(MemoryMeter::kHost, bytes)) {
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    return nullptr;
  }
  void* memory = nullptr;
  *result =
      driver_.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (*result == CUDA_SUCCESS) return memory;
  meter_.give(MemoryMeter::kHost, bytes);
  return nullptr;
}

void DigestMemory::give(wire::ObjectId context, void* memory, uint64_t bytes, bool is_unused) {
  const Kept piece{context, memory, size_for(bytes)};
  if (!is_unused || piece.bytes > kMostKeptBytes || kept_.size() == kMostKept) return free(piece);
  kept_.push_back(piece);
}

void DigestMemory::forget_context(wire::ObjectId context) {
  const auto ends = std::stable_partition(
      kept_.begin(), kept_.end(), [&](const Kept& piece) { return piece.context != context; });
  std::for_each(ends, kept_.end(), [this](const Kept& piece) { free(piece); });
  kept_.erase(ends, kept_.end());
}

}  // namespace rcuda::server
