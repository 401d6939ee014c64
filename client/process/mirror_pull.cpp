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
  const Target target{mirror.session, mirror.context, 0, mirror.fetches.get(), nullptr};
  const auto from = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(mirror.address + run.at));
  return mirror.session->staging().to_host(target, to, from,
                                           std::min(run.bytes, mirror.bytes - run.at));
}

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
        mirror.exchanged[at / kMirrorBlockBytes] = 1;
        continue;
      }
      if (mirror.sent && std::memcmp(there + at, known, length) == 0) continue;
      if (!mirror.sent || std::memcmp(here, known, length) == 0) {
        std::memcpy(here, there + at, length);
      } else {  // both sides have changed the block
        for (size_t i = 0; i < length; ++i) {
          if (there[at + i] != known[i]) here[i] = there[at + i];
        }
      }
      std::memcpy(known, there + at, length);
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
CUresult fetch_all(Mirror& mirror, std::vector<Run>* runs) {
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  Reply reply;
  *runs = {{0, mirror.bytes}};
  return mirror.session->call(mirror.session->in_context(mirror.context),
                              static_cast<uint16_t>(wire::Custom::kMirrorFetch),
                              std::as_bytes(std::span(&body, 1)), {}, 0, &reply);
}

// Makes the runs' pages absent. Leaves in *runs those that the application has changed as well, and
// those that cannot be absent.
void drop(Mirror& mirror, std::vector<Run>* runs) {
  std::vector<Run> stay;
  std::lock_guard lock(mirrors_mutex);
  for (const Run& run : *runs) {
    std::vector<Run> present;
    if (!mirror.tracker->present(mirror.address + run.at, run.bytes, &present)) {
      present = {{0, run.bytes}};
    }
    for (Run& part : present) part.at += run.at;
    const std::vector<Run> pieces = pieces_of(present, kMirrorPieceBytes);
    std::vector<std::vector<Run>> changed(pieces.size());
    run_parallel(pieces.size(), [&](size_t index) {
      const Run& piece = pieces[index];
      for (size_t at = piece.at; at < piece.at + piece.bytes; at += kMirrorBlockBytes) {
        const size_t length = mirror.block_length(at);
        if (!mirror.is_absent(at) &&
            std::memcmp(mirror.address + at, mirror.known.get() + at, length) != 0) {
          append(&changed[index], {at, length});
        }
      }
    });
    size_t at = run.at;
    const auto drop_until = [&](size_t end) {
      if (at < end && !mirror.absent->drop({at, end - at})) append(&stay, {at, end - at});
    };
    for (const std::vector<Run>& part : changed) {
      for (const Run& kept : part) {
        drop_until(kept.at);
        append(&stay, kept);
        at = kept.at + kept.bytes;
      }
    }
    drop_until(run.at + run.bytes);
  }
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

// Asks which blocks the GPU has changed, and fetches these, unless their pages can be absent. *runs
// has blocks of an earlier attempt, and gets the new ones as well.
CUresult fetch_changes(Mirror& mirror, std::vector<Run>* runs) {
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  {
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
  }
  join(runs);
  if (mirror.absent) drop_unread(mirror, runs);
  for (const Run& run : *runs) {
    const CUresult result = fetch_run(mirror, run, mirror.fetched + run.at);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult pull(Mirror& mirror) {
  std::vector<Run> runs;
  for (int attempt = 0;; ++attempt) {
    uint64_t version;
    {
      std::lock_guard lock(mirrors_mutex);
      version = mirror.version;
    }
    const CUresult result =
        mirror.changes_bytes != 0 ? fetch_changes(mirror, &runs) : fetch_all(mirror, &runs);
    std::lock_guard lock(mirrors_mutex);
    // Another thread is freeing the memory, and the worker may already know.
    if (mirror.removed && result != kSessionLost) return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    if (runs.empty()) return CUDA_SUCCESS;
    // Another exchange took place during the call, so these bytes may be older: fetch them again.
    // The number of attempts is limited, because a stream whose work never ends must not keep the
    // caller for ever. The bytes of the last attempt are used in any case.
    constexpr int kAttempts = 4;
    if (mirror.version != version && attempt < kAttempts) continue;
    merge(mirror, mirror.fetched, runs);
    return CUDA_SUCCESS;
  }
}

}  // namespace rcuda::client
