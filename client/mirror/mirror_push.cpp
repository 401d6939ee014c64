#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "client/mirror/mirror_exchange.h"
#include "client/mirror/mirror_patch.h"
#include "client/session/staging.h"
#include "client/session/task_pool.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/marked_bytes.h"

namespace rcuda::client {
namespace {

// The range of memory that one batch covers. The changes of a batch are copied before they are
// sent.
constexpr size_t kBatchBytes = 16 << 20;

// Sends bytes to the worker's copy. Does not return errors of earlier commands: the bytes are sent
// anyway, and the launch that follows returns those errors.
CUresult send(const Route& route, const std::byte* to, const std::byte* from, size_t bytes) {
  const auto destination = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(to));
  if (bytes > wire::kMaxInlineBytes) {
    return route.session->staging().to_device(route, destination, from, bytes);
  }
  pace(route);
  const wire::CopyInlineBody body{destination, static_cast<uint32_t>(bytes), stream_id(route)};
  return route.session->post(route, {body, {from, bytes}});
}

// Returns the blocks that the application may have written since the last call, in ascending order.
std::vector<Run> written(Mirror& mirror) RCUDA_REQUIRES(push_mutex) {
  std::vector<Run> runs;
  if (mirror.tracker && !std::exchange(mirror.all_written, false)) {
    // If most pages are written again before each push, comparing a page costs less than the fault
    // of a protected page.
    if (mirror.tracker->take(mirror.address, mirror.bytes, &runs, !mirror.rewritten)) return runs;
    runs.clear();
  }
  return {{0, mirror.bytes}};
}

// The bytes of one batch and, for page-locked memory, the marks of the changed bytes. Both begin at
// offset `begin` of the mirror.
struct Batch {
  size_t begin = 0;
  std::byte* content = nullptr;
  uint8_t* marks = nullptr;
  std::byte* bytes_of(size_t at) const { return content + (at - begin); }
  uint8_t* marks_of(size_t at) const { return marks + (at - begin) / 8; }
};

// Finds the blocks in `runs` that the application changed, copies them into the batch, and returns
// them.
std::vector<Run> changed(Mirror& mirror, const std::vector<Run>& runs, const Batch& batch) {
  const std::vector<Run> pieces = pieces_of(runs, kMirrorPieceBytes);
  std::vector<std::vector<Run>> found(pieces.size());
  run_parallel(pieces.size(), [&](size_t index) RCUDA_REQUIRES(mirrors_mutex) {
    const Run& piece = pieces[index];
    for (size_t at = piece.at; at < piece.at + piece.bytes; at += kMirrorBlockBytes) {
      const size_t length = mirror.block_length(at);
      const std::byte* const known = mirror.known.get() + at;
      const bool exchanged = mirror.exchanged[at / kMirrorBlockBytes] != 0;
      if (exchanged && std::memcmp(mirror.address + at, known, length) == 0) continue;
      std::memcpy(batch.bytes_of(at), mirror.address + at, length);
      if (mirror.is_patched() && exchanged) {
        wire::mark_differences(batch.bytes_of(at), known, length, batch.marks_of(at));
      } else if (mirror.is_patched()) {
        wire::mark_all(length, batch.marks_of(at));
      }
      append(&found[index], {at, length});
    }
  });
  std::vector<Run> all;
  for (const std::vector<Run>& part : found) {
    for (const Run& run : part) append(&all, run);
  }
  return all;
}

void note_exchanged(Mirror& mirror, const Run& run, bool exchanged) RCUDA_REQUIRES(mirrors_mutex) {
  std::fill_n(mirror.exchanged.begin() + static_cast<ptrdiff_t>(run.at / kMirrorBlockBytes),
              (run.bytes + kMirrorBlockBytes - 1) / kMirrorBlockBytes, uint8_t{exchanged});
}

// Sends whole blocks in the mirror's stream and notes that both sides have them. Blocks that could
// not be sent stay changed, for the next push.
CUresult push_blocks(Mirror& mirror, const Run& run, const std::byte* content) {
  RCUDA_RETURN_IF_CUDA_ERROR(send(mirror.route(), mirror.address + run.at, content, run.bytes));
  if (mirror.changes_bytes != 0) RCUDA_RETURN_IF_CUDA_ERROR(note_in_worker(mirror, run));
  const std::vector<Run> pieces = pieces_of({run}, kMirrorPieceBytes);
  MutexLock lock(mirrors_mutex);
  run_parallel(pieces.size(), [&](size_t index) RCUDA_REQUIRES(mirrors_mutex) {
    const Run& piece = pieces[index];
    std::memcpy(mirror.known.get() + piece.at, content + (piece.at - run.at), piece.bytes);
  });
  note_exchanged(mirror, run, true);
  ++mirror.version;
  return CUDA_SUCCESS;
}

// Records each patch as known to both sides before it is sent, so that a fetch in the meantime
// compares the worker's bytes with the patched bytes.
CUresult push_patches(Mirror& mirror, const std::vector<Run>& runs, const Batch& batch,
                      size_t* sent_bytes) RCUDA_REQUIRES(push_mutex) {
  std::vector<std::pair<Run, uint64_t>> patches;  // runs with the numbers of their patches
  MutexLock lock(mirrors_mutex);
  for (const Run& run : changed(mirror, runs, batch)) {
    patches.emplace_back(run,
                         note_patch(mirror, run, batch.bytes_of(run.at), batch.marks_of(run.at)));
    note_exchanged(mirror, run, true);
  }
  if (patches.empty()) return CUDA_SUCCESS;
  const uint64_t version = ++mirror.version;
  ++mirror.sent_versions;
  lock.unlock();
  CUresult result = CUDA_SUCCESS;
  size_t sent = 0;
  for (; sent < patches.size(); ++sent) {
    const auto& [run, number] = patches[sent];
    result = send_patch(mirror, number, run, batch.bytes_of(run.at), batch.marks_of(run.at));
    if (result != CUDA_SUCCESS) break;
    *sent_bytes += run.bytes;
  }
  lock.lock();
  for (size_t i = sent; i < patches.size(); ++i) note_exchanged(mirror, patches[i].first, false);
  if (mirror.version == version) return result;
  // Meanwhile another exchange has changed `known`, perhaps in the patched blocks. The digests that
  // were sent with the patches do not cover this change.
  for (const auto& [run, number] : patches) mirror.note_missing(run);
  return result;
}

// Sends the blocks in `runs` that the application changed. Adds their bytes to *sent_bytes.
CUresult push_runs(Mirror& mirror, const std::vector<Run>& runs, const Batch& batch,
                   size_t* sent_bytes) RCUDA_REQUIRES(push_mutex) {
  if (mirror.is_patched()) return push_patches(mirror, runs, batch, sent_bytes);
  MutexLock lock(mirrors_mutex);
  const std::vector<Run> found = changed(mirror, runs, batch);
  lock.unlock();
  for (const Run& run : found) {
    RCUDA_RETURN_IF_CUDA_ERROR(push_blocks(mirror, run, batch.bytes_of(run.at)));
    *sent_bytes += run.bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult note_in_worker(const Mirror& mirror, const Run& run) {
  const Route route = mirror.route();
  pace(route);
  const wire::MirrorNoteBody body{reinterpret_cast<uintptr_t>(mirror.address), run.at, run.bytes,
                                  stream_id(route), 0};
  return route.session->post(route, body);
}

CUresult push(Mirror& mirror, std::vector<std::byte>* content, size_t* sent_bytes) {
  std::vector<Run> batch;  // runs that together span at most kBatchBytes
  const size_t sent_before = *sent_bytes;
  const auto send_batch = [&]() RCUDA_REQUIRES(push_mutex) {
    if (batch.empty()) return CUDA_SUCCESS;
    content->resize(kBatchBytes + wire::mask_bytes(kBatchBytes));
    const Batch changes{batch.front().at, content->data(),
                        reinterpret_cast<uint8_t*>(content->data() + kBatchBytes)};
    const CUresult result = push_runs(mirror, batch, changes, sent_bytes);
    batch.clear();
    return result;
  };
  CUresult result = CUDA_SUCCESS;
  const std::vector<Run> all = written(mirror);
  for (Run run : all) {
    while (run.bytes != 0 && result == CUDA_SUCCESS) {
      const size_t begin = batch.empty() ? run.at : batch.front().at;
      if (run.at - begin >= kBatchBytes) {
        result = send_batch();
        continue;
      }
      const size_t length = std::min(run.bytes, kBatchBytes - (run.at - begin));
      batch.push_back({run.at, length});
      run = {run.at + length, run.bytes - length};
    }
  }
  if (result == CUDA_SUCCESS) result = send_batch();
  if (!all.empty()) mirror.rewritten = *sent_bytes - sent_before > bytes_of(all) / 2;
  MutexLock lock(mirrors_mutex);
  if (result == CUDA_SUCCESS) {
    mirror.stage.move(MirrorEvent::kExchange, mirror.name);
  } else {
    mirror.all_written = true;
  }
  return result;
}

}  // namespace rcuda::client
