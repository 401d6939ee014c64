#include "client/process/mirror_patch.h"

#include <algorithm>
#include <span>
#include <vector>

#include "common/wire/block_digest.h"
#include "common/wire/marked_bytes.h"

namespace rcuda::client {
namespace {

constexpr size_t kMostBytes = wire::kMostPatchBlocks * kMirrorBlockBytes;

template <typename T>
void append(std::vector<std::byte>* tail, const T* items, size_t count) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(items);
  tail->insert(tail->end(), bytes, bytes + count * sizeof(T));
}

// Of a block whose end is inside of 16 bytes, the worker's digest covers bytes that are not here.
wire::BlockDigest digest_of(const Mirror& mirror, size_t at, const std::byte* content) {
  const size_t bytes = mirror.block_length(at);
  if (mirror.changes_bytes != kMirrorBlockBytes || bytes % 16 != 0) {
    return wire::BlockDigest::none();
  }
  return wire::block_digest(content, bytes, at);
}

}  // namespace

CUresult send_patch(const Mirror& mirror, const Run& run, const std::byte* content,
                    const uint8_t* mask) {
  std::vector<std::byte> tail;
  CUresult result = CUDA_SUCCESS;
  for (size_t done = 0; done < run.bytes && result == CUDA_SUCCESS; done += kMostBytes) {
    const size_t bytes = std::min(kMostBytes, run.bytes - done);
    tail.clear();
    append(&tail, content + done, bytes);
    append(&tail, mask + wire::mask_bytes(done), wire::mask_bytes(bytes));
    for (size_t at = 0; at < bytes; at += kMirrorBlockBytes) {
      const wire::BlockDigest digest = digest_of(mirror, run.at + done + at, content + done + at);
      append(&tail, &digest, 1);
    }
    const wire::MirrorPatchBody body{reinterpret_cast<uintptr_t>(mirror.address), run.at + done,
                                     static_cast<uint32_t>(bytes), 0};
    result =
        mirror.session->post(mirror.target(), static_cast<uint16_t>(wire::Custom::kMirrorPatch),
                             std::as_bytes(std::span(&body, 1)), tail);
  }
  return result;
}

}  // namespace rcuda::client
