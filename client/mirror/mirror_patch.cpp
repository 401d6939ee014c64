#include "client/mirror/mirror_patch.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "client/session/task_pool.h"
#include "common/base/append_bytes.h"
#include "common/wire/block_digest.h"
#include "common/wire/marked_bytes.h"

namespace rcuda::client {
namespace {

constexpr size_t kMostBytes = wire::kMostPatchBlocks * kMirrorBlockBytes;

size_t bytes_of(const SentBytes& sent) { return sizeof sent + sent.marks.size(); }

// Returns the block's digest, or none() in two cases. If the block does not end at a multiple of 16
// bytes, the worker's digest also covers bytes after the mirror. If the worker's blocks have
// another size, the worker has no digest of this block.
wire::BlockDigest digest_of(const Mirror& mirror, size_t at, const std::byte* content) {
  const size_t bytes = mirror.block_length(at);
  if (mirror.changes_bytes != kMirrorBlockBytes || bytes % 16 != 0) {
    return wire::BlockDigest::none();
  }
  return wire::block_digest(content, bytes, at);
}

// Returns the part of the run from the first to the last marked byte.
SentBytes sent_bytes(uint64_t number, const Run& run, const uint8_t* mask) {
  const wire::MarkedPart part = wire::marked_part(run.bytes, mask);
  const uint8_t* const first = mask + part.at / 8;
  return {number, {run.at + part.at, part.bytes}, {first, first + wire::mask_bytes(part.bytes)}};
}

void forget_oldest(Mirror& mirror) RCUDA_REQUIRES(mirrors_mutex) {
  mirror.recent_bytes -= bytes_of(mirror.recent.front());
  mirror.recent.pop_front();
}

// Joins all recent patches into one, with the number of the last patch and the marks of all.
void join_recent(Mirror& mirror) RCUDA_REQUIRES(mirrors_mutex) {
  size_t begin = mirror.bytes, end = 0;
  for (const SentBytes& sent : mirror.recent) {
    begin = std::min(begin, sent.run.at);
    end = std::max(end, sent.run.at + sent.run.bytes);
  }
  SentBytes all{mirror.recent.back().number, {begin, end - begin}, {}};
  all.marks.resize(wire::mask_bytes(end - begin));
  for (const SentBytes& sent : mirror.recent) {
    uint8_t* const to = &all.marks[(sent.run.at - begin) / 8];
    for (size_t i = 0; i < sent.marks.size(); ++i) to[i] |= sent.marks[i];
  }
  mirror.recent.clear();
  mirror.recent_bytes = bytes_of(all);
  mirror.recent.push_back(std::move(all));
}

// Writes into `there`, the worker's copy, the sent bytes that it may lack. Calls replaced(run)
// before each run is written.
template <typename Replaced>
void bring_up_to_date(Mirror& mirror, std::byte* there, const Replaced& replaced)
    RCUDA_REQUIRES(mirrors_mutex) {
  const auto replace = [&](const SentBytes& sent) RCUDA_REQUIRES(mirrors_mutex) {
    const Run& run = sent.run;
    replaced(run);
    wire::copy_marked(there + run.at, mirror.known.get() + run.at, run.bytes, sent.marks.data());
  };
  std::for_each(mirror.recent.begin(), mirror.recent.end(), replace);
  std::for_each(mirror.returned.begin(), mirror.returned.end(), replace);
}

}  // namespace

CUresult send_patch(const Mirror& mirror, uint64_t number, const Run& run, const std::byte* content,
                    const uint8_t* mask) {
  std::vector<std::byte> tail;
  CUresult result = CUDA_SUCCESS;
  const wire::MarkedPart part = wire::marked_part(run.bytes, mask);
  const size_t all = part.at + part.bytes;
  for (size_t begin = part.at; begin < all && result == CUDA_SUCCESS;) {
    const size_t bytes = std::min(kMostBytes, all - begin);
    tail.clear();
    append_bytes(&tail, std::span(content + begin, bytes));
    append_bytes(&tail, std::span(mask + begin / 8, wire::mask_bytes(bytes)));
    for (size_t at = begin / kMirrorBlockBytes * kMirrorBlockBytes; at < begin + bytes;
         at += kMirrorBlockBytes) {
      const wire::BlockDigest digest = digest_of(mirror, run.at + at, content + at);
      append_bytes(&tail, std::span(&digest, 1));
    }
    const wire::MirrorPatchBody body{reinterpret_cast<uintptr_t>(mirror.address), run.at + begin,
                                     number, static_cast<uint32_t>(bytes), begin + bytes != all};
    result = mirror.session->post(mirror.route(), {body, tail});
    begin += bytes;
  }
  return result;
}

uint64_t note_patch(Mirror& mirror, const Run& run, const std::byte* content, const uint8_t* mask) {
  const std::vector<Run> pieces = pieces_of({run}, kMirrorPieceBytes);
  run_parallel(pieces.size(), [&](size_t index) RCUDA_REQUIRES(mirrors_mutex) {
    const Run& piece = pieces[index];
    const size_t at = piece.at - run.at;
    wire::copy_marked(mirror.known.get() + piece.at, content + at, piece.bytes, mask + at / 8);
  });
  SentBytes sent = sent_bytes(mirror.patches + 1, run, mask);
  if (sent.run.bytes == 0) return mirror.patches;  // no byte differs any more
  ++mirror.patches;
  mirror.recent_bytes += bytes_of(sent);
  mirror.recent.push_back(std::move(sent));
  // Answers about the mirror remove patches from `recent`, but a program may run for a long time
  // without a wait. So join the patches when they take too much memory.
  const size_t most_bytes = mirror.bytes / 4 + (256 << 10);
  if (mirror.recent_bytes > most_bytes) join_recent(mirror);
  return mirror.patches;
}

void return_changes(Mirror& mirror) {
  mirror.returned.clear();
  // The bytes that the worker takes back contain the patches so far, and no later patches.
  const wire::MirrorLoan loan{mirror.loan, mirror.patches};
  std::memcpy(mirror.lent + wire::MirrorLoan::offset(mirror.bytes), &loan, sizeof loan);
  for (size_t at = 0; at < mirror.bytes; at += kMirrorBlockBytes) {
    const size_t length = mirror.block_length(at);
    std::byte* const known = mirror.known.get() + at;
    std::byte* const lent = mirror.lent + at;
    if (std::memcmp(known, mirror.address + at, length) == 0) continue;
    std::byte content[kMirrorBlockBytes];
    uint8_t mask[wire::mask_bytes(kMirrorBlockBytes)], others[sizeof mask];
    std::memcpy(content, mirror.address + at, length);
    wire::mark_differences(content, known, length, mask);
    // The worker takes over the bytes that differ from the lent bytes. A byte that equals the lent
    // byte but differs from `known` goes with the next push. Bytes that the host has not changed
    // stay as lent, because the worker may have newer values.
    wire::mark_differences(content, lent, length, others);
    const size_t marks = wire::mask_bytes(length);
    for (size_t i = 0; i < marks; ++i) mask[i] &= others[i];
    SentBytes sent = sent_bytes(mirror.loan, {at, length}, mask);
    if (sent.run.bytes == 0) continue;
    wire::copy_marked(lent, content, length, mask);
    wire::copy_marked(known, content, length, mask);
    mirror.returned.push_back(std::move(sent));
    mirror.exchanged[at / kMirrorBlockBytes] = 1;
    mirror.note_missing(at);
  }
}

void forget_confirmed(Mirror& mirror, const wire::MirrorState& state) {
  wire::MirrorState& confirmed = mirror.confirmed;
  confirmed.patches = std::max(confirmed.patches, std::min(state.patches, mirror.patches));
  confirmed.loan = std::max(confirmed.loan, std::min(state.loan, mirror.loan));
  while (!mirror.recent.empty() && mirror.recent.front().number <= state.patches) {
    forget_oldest(mirror);
  }
  if (!mirror.returned.empty() && mirror.returned.front().number <= state.loan) {
    mirror.returned.clear();
  }
}

bool is_outdated(const Mirror& mirror, const wire::MirrorState& state) {
  return state.patches < mirror.confirmed.patches || state.loan < mirror.confirmed.loan;
}

void merge_lent(Mirror& mirror, std::byte* there, const wire::MirrorState& state) {
  if (is_outdated(mirror, state)) return;
  forget_confirmed(mirror, state);
  std::vector<std::pair<Run, std::vector<std::byte>>> before;
  bring_up_to_date(mirror, there, [&](const Run& run) {
    before.emplace_back(run, std::vector(there + run.at, there + run.at + run.bytes));
  });
  merge(mirror, there, {{0, mirror.bytes}}, false);
  // Undoes the changes of bring_up_to_date(), because the worker would treat each of these bytes as
  // a change by the host function.
  std::for_each(before.rbegin(), before.rend(), [&](const auto& saved) {
    std::copy(saved.second.begin(), saved.second.end(), there + saved.first.at);
  });
}

void merge_fetched(Mirror& mirror, std::byte* there, const std::vector<Run>& runs,
                   const wire::MirrorState& state) {
  forget_confirmed(mirror, state);
  std::vector<Run> replaced;
  bring_up_to_date(mirror, there, [&](const Run& run) { replaced.push_back(run); });
  merge(mirror, there, runs, true);
  // For these runs, the worker has noted its own, older bytes, so its digests do not match.
  for (const Run& run : replaced) mirror.note_missing(run);
}

}  // namespace rcuda::client
