#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "client/channel/staging.h"
#include "client/channel/task_pool.h"
#include "client/process/mirror_exchange.h"

namespace rcuda::client {

CUresult fetch_run(Mirror& mirror, const Run& run, std::byte* to) {
  const size_t bytes = std::min(run.bytes, mirror.bytes - run.at);
  // Before the copy: if a kernel changes the memory in between, the worker finds a difference.
  if (CUresult result = note_in_worker(mirror, {run.at, bytes}); result != CUDA_SUCCESS) {
    return result;
  }
  const auto from = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(mirror.address + run.at));
  return mirror.session->staging().to_host(mirror.target(), to, from, bytes);
}

namespace {

// Takes the bytes that the worker changed, and writes no others, which threads of the application
// may be writing now.
void take_changes(std::byte* here, std::byte* known, const std::byte* there, size_t length) {
  constexpr size_t kWord = sizeof(uint32_t);
  size_t at = 0;
  for (; at + kWord <= length; at += kWord) {
    uint32_t now, before, mine;
    std::memcpy(&now, there + at, kWord);
    std::memcpy(&before, known + at, kWord);
    if (now == before) continue;
    std::memcpy(&mine, here + at, kWord);
    if (mine == before) {
      std::memcpy(here + at, &now, kWord);
      continue;
    }
    for (size_t i = at; i < at + kWord; ++i) {  // both sides have changed the word
      if (there[i] != known[i]) here[i] = there[i];
    }
  }
  for (; at < length; ++at) {
    if (there[at] != known[at]) here[at] = there[at];
  }
  std::memcpy(known, there, length);
}

}  // namespace

void merge(Mirror& mirror, const std::byte* there, const std::vector<Run>& runs, bool noted) {
  const std::vector<Run> pieces = pieces_of(runs, kMirrorPieceBytes);
  run_parallel(pieces.size(), [&](size_t index) {
    const Run& piece = pieces[index];
    for (size_t at = piece.at; at < piece.at + piece.bytes; at += kMirrorBlockBytes) {
      const size_t length = mirror.block_length(at);
      std::byte* const known = mirror.known.get() + at;
      std::byte* const here = mirror.address + at;
      if (mirror.is_absent(at)) {
        mirror.absent->install({at, length}, there + at);
      } else if (!mirror.sent) {
        std::memcpy(here, there + at, length);
        std::memcpy(known, there + at, length);
      } else if (std::memcmp(there + at, known, length) != 0) {
        take_changes(here, known, there + at, length);
      } else {
        continue;
      }
      if (!noted) mirror.note_missing(at);
      mirror.exchanged[at / kMirrorBlockBytes] = 1;
    }
  });
  mirror.sent = true;
  ++mirror.version;
}

namespace {

// Changes of the GPU that are fetched after a wait, whether or not the application accesses them.
constexpr size_t kFetchAtOnce = 128 << 10;
constexpr size_t kSampleBytes = 64 << 10;
constexpr size_t kMostReplyBytes = wire::ClientWindow::kLargeReplyBytes - 1024;

// Fetches the bytes of the whole mirror in one round trip.
CUresult fetch_all(Mirror& mirror) {
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  Reply reply;
  mirror.unfetched = {{0, mirror.bytes}};
  return mirror.session->call(mirror.session->in_context(mirror.context),
                              static_cast<uint16_t>(wire::Custom::kMirrorFetch),
                              std::as_bytes(std::span(&body, 1)), {}, 0, &reply);
}

// Makes the runs' pages absent. Leaves in *runs those that the application has changed as well, and
// those that cannot be absent.
void drop(Mirror& mirror, std::vector<Run>* runs) {
  std::vector<Run> stay;
  std::lock_guard lock(mirrors_mutex);
  for (const Run& run : *runs) mirror.absent->drop(run, &stay);
  *runs = std::move(stay);
}

// Whether all that the application has changed is in its pages.
bool is_whole(Mirror& mirror) { return !mirror.absent || mirror.absent->put_back(); }

// Drops pages that the application may not access, judging by what it did so far. Leaves in *runs
// what is to be fetched now. `expected`: the application has said that it will.
void drop_unread(Mirror& mirror, bool expected, std::vector<Run>* runs) {
  if (bytes_of(*runs) <= kFetchAtOnce) return;
  const size_t still_absent = mirror.absent->count();
  mirror.reads_all =
      mirror.reads_all ? !mirror.is_absent(mirror.sample) : still_absent < mirror.dropped_pages / 2;
  mirror.reads_all = mirror.reads_all || expected;
  if (!mirror.reads_all) {
    drop(mirror, runs);
  } else {
    // Whether the application accesses a few pages decides about the next time. They are not at
    // the middle or another simple fraction, which programs access for reasons of their own.
    Run& longest = *std::max_element(runs->begin(), runs->end(),
                                     [](const Run& a, const Run& b) { return a.bytes < b.bytes; });
    const size_t end = longest.at + longest.bytes;
    const size_t chosen = longest.at + longest.bytes / 1000 * 618 / kSampleBytes * kSampleBytes;
    std::vector<Run> sample = {{chosen, std::min(kSampleBytes, end - chosen)}};
    longest.bytes = chosen - longest.at;
    const Run rest = {chosen + sample[0].bytes, end - chosen - sample[0].bytes};
    drop(mirror, &sample);
    runs->insert(runs->end(), sample.begin(), sample.end());
    runs->push_back(rest);
    std::erase_if(*runs, [](const Run& run) { return run.bytes == 0; });
    join(runs);
    mirror.sample = chosen;
  }
  mirror.dropped_pages = mirror.absent->count();
}

// Takes what the worker has no note of, and the absent pages that the application will read.
// Returns whether there are such pages.
bool take_known(Mirror& mirror, std::vector<Run>* runs) {
  std::lock_guard lock(mirrors_mutex);
  if (mirror.any_unnoted.exchange(false)) {
    for (size_t at = 0; at < mirror.bytes; at += kMirrorBlockBytes) {
      if (!std::exchange(mirror.unnoted[at / kMirrorBlockBytes], 0)) continue;
      append(runs, {at, mirror.block_length(at)});
    }
  }
  bool any = false;
  for (const Run& run : std::exchange(mirror.expected, {})) {
    for (size_t at = run.at; at < run.at + run.bytes; at += kMirrorBlockBytes) {
      if (!mirror.is_absent(at)) continue;
      append(runs, {at, mirror.block_length(at)});
    }
    any = true;
  }
  return any;
}

// The runs in blocks as the worker counts them, with the gaps between them if they are too many.
std::vector<wire::MirrorRun> in_blocks(const Mirror& mirror, const std::vector<Run>& runs) {
  constexpr size_t kMost = 2048;
  std::vector<wire::MirrorRun> blocks;
  for (size_t gap = 1;; gap *= 2) {
    blocks.clear();
    for (const Run& run : runs) {
      const uint64_t first = run.at / mirror.changes_bytes;
      const uint64_t end = (std::min(run.at + run.bytes, mirror.bytes) + mirror.changes_bytes - 1) /
                           mirror.changes_bytes;
      if (!blocks.empty() && first < blocks.back().first + blocks.back().count + gap) {
        blocks.back().count = end - blocks.back().first;
      } else {
        blocks.push_back({first, end - first});
      }
    }
    if (blocks.size() <= kMost) return blocks;
  }
}

// Asks which of these blocks differ in the worker; without any, of all. Adds them to *runs.
CUresult ask(Mirror& mirror, const std::vector<wire::MirrorRun>& blocks, std::vector<Run>* runs) {
  const wire::MirrorChangesBody body{reinterpret_cast<uintptr_t>(mirror.address), blocks.size()};
  Reply reply;
  const CUresult result = mirror.session->call(
      mirror.session->in_context(mirror.context),
      static_cast<uint16_t>(wire::Custom::kMirrorChanges), std::as_bytes(std::span(&body, 1)),
      std::as_bytes(std::span(blocks)), kMostReplyBytes, &reply);
  if (result != CUDA_SUCCESS) return result;
  for (size_t at = 0; at + sizeof(wire::MirrorRun) <= reply.body().size();
       at += sizeof(wire::MirrorRun)) {
    wire::MirrorRun run;
    std::memcpy(&run, reply.body().data() + at, sizeof run);
    const size_t begin = run.first * mirror.changes_bytes;
    if (begin >= mirror.bytes || run.count > mirror.bytes) return CUDA_ERROR_UNKNOWN;
    runs->push_back({begin, std::min(run.count * mirror.changes_bytes, mirror.bytes - begin)});
  }
  return CUDA_SUCCESS;
}

// Finds out which blocks the GPU has changed, and fetches these, unless their pages can be absent.
// The GPU is asked about pages that are not absent: what absent ones have in the worker matters
// when they are accessed.
CUresult fetch_changes(Mirror& mirror) {
  std::vector<Run>& runs = mirror.unfetched;
  if (!is_whole(mirror)) return CUDA_ERROR_OUT_OF_MEMORY;  // what an earlier drop has left aside
  const bool expected = take_known(mirror, &runs);
  std::vector<Run> here;
  bool asks = true;
  if (mirror.absent) {
    const size_t absent_before = mirror.absent->count();
    if (mirror.absent->present(mirror.reads_empty, &here)) asks = !here.empty();
    // Empty pages count as dropped.
    const size_t absent_now = mirror.absent->count();
    if (absent_now > absent_before) mirror.dropped_pages += absent_now - absent_before;
  }
  CUresult result = asks ? ask(mirror, in_blocks(mirror, here), &runs) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  join(&runs);
  if (mirror.absent) drop_unread(mirror, expected, &runs);
  if (!is_whole(mirror)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const Run& run : runs) {
    result = fetch_run(mirror, run, mirror.fetched + run.at);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// Gives the memory of a large fetch back when many pulls after it have fetched little. New pages
// cost 0.7 ms per MB, as much as some fetches. Not if a Link's adapter keeps the pages, nor where
// the worker writes to them.
void free_fetched(Mirror& mirror) {
  constexpr size_t kLarge = 4 << 20;
  constexpr int kPulls = 16;
  if (mirror.changes_bytes == 0 || mirror.session->traits().has_adapter) return;
  if (bytes_of(mirror.unfetched) > kLarge) {
    mirror.pulls_to_free = kPulls;
  } else if (mirror.pulls_to_free > 0 && --mirror.pulls_to_free == 0) {
    (void)madvise(mirror.fetched, mirror.bytes, MADV_REMOVE);
  }
}

}  // namespace

CUresult pull(Mirror& mirror) {
  for (int attempt = 0;; ++attempt) {
    uint64_t version;
    {
      std::lock_guard lock(mirrors_mutex);
      version = mirror.version;
    }
    const CUresult result = mirror.changes_bytes != 0 ? fetch_changes(mirror) : fetch_all(mirror);
    std::unique_lock lock(mirrors_mutex);
    // Another thread is freeing the memory, and the worker may already know.
    if (mirror.removed && result != kSessionLost) return CUDA_SUCCESS;
    mirror.behind = result != CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    // Another exchange took place during the call, so these bytes may be older: fetch them again.
    // The number of attempts is limited, because a stream whose work never ends must not keep the
    // caller for ever. The bytes of the last attempt are used in any case.
    constexpr int kAttempts = 4;
    if (!mirror.unfetched.empty() && mirror.version != version && attempt < kAttempts) continue;
    if (!mirror.unfetched.empty()) merge(mirror, mirror.fetched, mirror.unfetched, true);
    lock.unlock();
    free_fetched(mirror);
    mirror.unfetched.clear();
    return CUDA_SUCCESS;
  }
}

}  // namespace rcuda::client
