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
  const auto from = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(mirror.address + run.at));
  return mirror.session->staging().to_host(mirror.target(), to, from,
                                           std::min(run.bytes, mirror.bytes - run.at));
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

void merge(Mirror& mirror, const std::byte* there, const std::vector<Run>& runs) {
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

// Drops pages that the application may not access, judging by what it did so far. Leaves in *runs
// what is to be fetched now.
void drop_unread(Mirror& mirror, std::vector<Run>* runs) {
  if (bytes_of(*runs) <= kFetchAtOnce) return;
  const size_t still_absent = mirror.absent->count();
  mirror.reads_all =
      mirror.reads_all ? !mirror.is_absent(mirror.sample) : still_absent < mirror.dropped_pages / 2;
  if (mirror.expected.exchange(false)) mirror.reads_all = true;
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

// Asks which blocks the GPU has changed.
CUresult ask_changes(Mirror& mirror, std::vector<Run>* runs) {
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  Reply reply;
  const CUresult result =
      mirror.session->call(mirror.session->in_context(mirror.context),
                           static_cast<uint16_t>(wire::Custom::kMirrorChanges),
                           std::as_bytes(std::span(&body, 1)), {}, kMostReplyBytes, &reply);
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

// Fetches the blocks that the GPU has changed, unless their pages can be absent.
CUresult fetch_changes(Mirror& mirror) {
  std::vector<Run>& runs = mirror.unfetched;
  CUresult result = ask_changes(mirror, &runs);
  if (result != CUDA_SUCCESS) {
    runs = {{0, mirror.bytes}};  // the worker tells each change once, and the answer is lost
    return result;
  }
  join(&runs);
  if (mirror.absent) drop_unread(mirror, &runs);
  for (const Run& run : runs) {
    result = fetch_run(mirror, run, mirror.fetched + run.at);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
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
    std::lock_guard lock(mirrors_mutex);
    // Another thread is freeing the memory, and the worker may already know.
    if (mirror.removed && result != kSessionLost) return CUDA_SUCCESS;
    mirror.behind = result != CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    // Another exchange took place during the call, so these bytes may be older: fetch them again.
    // The number of attempts is limited, because a stream whose work never ends must not keep the
    // caller for ever. The bytes of the last attempt are used in any case.
    constexpr int kAttempts = 4;
    if (!mirror.unfetched.empty() && mirror.version != version && attempt < kAttempts) continue;
    if (!mirror.unfetched.empty()) merge(mirror, mirror.fetched, mirror.unfetched);
    mirror.unfetched.clear();
    return CUDA_SUCCESS;
  }
}

}  // namespace rcuda::client
