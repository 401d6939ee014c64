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

size_t bytes_of(const SentPatch& patch) { return sizeof patch + patch.marks.size(); }

// Of a block whose end is inside of 16 bytes, the worker's digest covers bytes that are not here.
wire::BlockDigest digest_of(const Mirror& mirror, size_t at, const std::byte* content) {
  const size_t bytes = mirror.block_length(at);
  if (mirror.changes_bytes != kMirrorBlockBytes || bytes % 16 != 0) {
    return wire::BlockDigest::none();
  }
  return wire::block_digest(content, bytes, at);
}

}  // namespace

CUresult send_patch(Mirror& mirror, const Run& run, const std::byte* content, const uint8_t* mask) {
  std::vector<std::byte> tail;
  CUresult result = CUDA_SUCCESS;
  for (size_t done = 0; done < run.bytes && result == CUDA_SUCCESS; done += kMostBytes) {
    const size_t length = std::min(kMostBytes, run.bytes - done);
    const wire::MarkedPart part = wire::marked_part(length, mask + done / 8);
    if (part.bytes == 0) continue;
    const size_t begin = done + part.at, end = begin + part.bytes;
    tail.clear();
    append(&tail, content + begin, part.bytes);
    append(&tail, mask + begin / 8, wire::mask_bytes(part.bytes));
    for (size_t at = begin / kMirrorBlockBytes * kMirrorBlockBytes; at < end;
         at += kMirrorBlockBytes) {
      const wire::BlockDigest digest = digest_of(mirror, run.at + at, content + at);
      append(&tail, &digest, 1);
    }
    const wire::MirrorPatchBody body{reinterpret_cast<uintptr_t>(mirror.address), run.at + begin,
                                     ++mirror.patches, static_cast<uint32_t>(part.bytes), 0};
    result =
        mirror.session->post(mirror.target(), static_cast<uint16_t>(wire::Custom::kMirrorPatch),
                             std::as_bytes(std::span(&body, 1)), tail);
  }
  return result;
}

namespace {

void forget_oldest(Mirror& mirror) {
  mirror.recent_bytes -= bytes_of(mirror.recent.front());
  mirror.recent.pop_front();
}

}  // namespace

void note_patch(Mirror& mirror, const Run& run, const uint8_t* mask) {
  const wire::MarkedPart part = wire::marked_part(run.bytes, mask);
  const uint8_t* const first = mask + part.at / 8;
  mirror.recent.push_back({mirror.patches,
                           {run.at + part.at, part.bytes},
                           {first, first + wire::mask_bytes(part.bytes)}});
  mirror.recent_bytes += bytes_of(mirror.recent.back());
  // A patch is on its way for a moment only. Later, nobody asks for it.
  const size_t most_bytes = mirror.bytes / 8 + (64 << 10);
  while (mirror.recent_bytes > most_bytes) forget_oldest(mirror);
}

std::vector<std::byte> with_later_patches(Mirror& mirror, const std::byte* there, uint64_t number) {
  while (!mirror.recent.empty() && mirror.recent.front().number <= number) forget_oldest(mirror);
  std::vector<std::byte> bytes;
  if (mirror.recent.empty()) return bytes;
  bytes.assign(there, there + mirror.bytes);
  for (const SentPatch& sent : mirror.recent) {
    const Run& run = sent.run;
    wire::copy_marked(&bytes[run.at], mirror.known.get() + run.at, run.bytes, sent.marks.data());
  }
  return bytes;
}

}  // namespace rcuda::client
