// Mirror: the state of one mirror (mirror.h), and the exchange of its bytes with the worker.
//
// Threads: any; each function says which locks its caller holds. Blocking: push() for room in the
// command ring and in the staging region, pull() for the worker. Errors: those of the session.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cuda.h>
#include <sys/mman.h>

#include "client/mirror/mirror_stage.h"
#include "client/mirror/mirror_use.h"
#include "client/mirror/runs.h"
#include "client/mirror/write_tracker.h"
#include "client/session/session.h"
#include "client/session/timeline.h"
#include "common/base/mutex.h"

namespace rcuda::client {

// The unit in which memory is compared, and sent if it differs.
inline constexpr size_t kMirrorBlockBytes = 4096;
// The piece for one thread when several threads compare or merge.
inline constexpr size_t kMirrorPieceBytes = 1 << 20;

// Never held during a wait for the worker: the worker may be waiting for a host function, and the
// thread that runs host functions locks this mutex.
inline Mutex mirrors_mutex;
// Ensures that changes enter the command ring in the order in which they were found, and that none
// are sent after the worker has dropped the memory. Locked before mirrors_mutex.
inline Mutex push_mutex;
// Held while bytes are fetched. Locked before mirrors_mutex.
inline Mutex pull_mutex;

struct UnmapPages {
  size_t bytes = 0;
  void operator()(std::byte* memory) const { munmap(memory, bytes); }
};

enum class MirroredMemory {
  kHost,      // page-locked memory of this process; outlives the worker's contexts
  kVariable,  // of a module or library; the worker has its first contents
  kManaged,   // of the worker's driver; its pages here end with the mirror
};

// Bytes that were sent to the worker and may not have arrived.
struct SentBytes {
  uint64_t number;  // of the patch or the loan
  Run run;
  std::vector<uint8_t> marks;  // common/wire/marked_bytes.h
};

struct MirrorNews;

// Memory that is mirrored with one worker.
struct Mirror {
  Session* session = nullptr;
  wire::ObjectId context = 0;
  std::byte* address = nullptr;
  size_t bytes = 0;
  size_t changes_bytes = 0;  // block size of MirrorChanges; 0: the worker tracks no changes
  MirroredMemory memory = MirroredMemory::kHost;
  std::atomic<MirrorUse> use{MirrorUse::kAny};
  // With MirrorUse::kNamed: contexts whose work got an address in this memory and may still run.
  std::vector<wire::ObjectId> named_in RCUDA_GUARDED_BY(push_mutex);
  WriteTracker* tracker = nullptr;      // null: the application's changes are found by comparing
  std::shared_ptr<Timeline> exchanges;  // of wire::kFetchStream, which moves bytes both ways
  bool all_written RCUDA_GUARDED_BY(push_mutex) = true;  // `tracker` may have missed writes
  // Whether the last push sent more than half of the bytes that it compared. If so, the next push
  // does not protect the written pages again, because comparing them costs less.
  bool rewritten RCUDA_GUARDED_BY(push_mutex) = false;
  StateWord<kMirrorTransitions> stage;
  std::string name;  // for the log
  // The runs that the worker has reported as changed by the GPU, and that the client lacks.
  std::vector<Run> unfetched RCUDA_GUARDED_BY(pull_mutex);
  // After this number of further small pulls, the memory of `fetched` is released.
  int pulls_to_free RCUDA_GUARDED_BY(pull_mutex) = 0;
  // The bytes at the last exchange, equal on both sides.
  std::unique_ptr<std::byte[], UnmapPages> known RCUDA_GUARDED_BY(mirrors_mutex);
  // By block: whether it was ever sent or fetched, so that `known` has its bytes. `tracker` also
  // reports blocks that a fetch has written; the comparison with `known` keeps a push from sending
  // them back over newer results.
  std::vector<uint8_t> exchanged RCUDA_GUARDED_BY(mirrors_mutex);
  // By block: 1 if it was exchanged without a note in the worker (note_in_worker()), so the
  // worker's digests do not cover it.
  std::vector<uint8_t> unnoted RCUDA_GUARDED_BY(mirrors_mutex);
  std::atomic<bool> any_unnoted{false};
  uint64_t version RCUDA_GUARDED_BY(mirrors_mutex) = 0;  // grows when `known` changes
  // How often `version` grew only because of bytes that were sent as patches.
  uint64_t sent_versions RCUDA_GUARDED_BY(mirrors_mutex) = 0;
  // MirrorState::answer of the last bytes that the client took over.
  uint64_t answer RCUDA_GUARDED_BY(mirrors_mutex) = 0;
  // The number of following pulls that fetch all bytes, without a query for changes.
  int pulls_without_news RCUDA_GUARDED_BY(mirrors_mutex) = 0;
  uint64_t patches RCUDA_GUARDED_BY(mirrors_mutex) = 0;  // number sent so far
  // The last patches, in order; the worker may not have them yet.
  std::deque<SentBytes> recent RCUDA_GUARDED_BY(mirrors_mutex);
  size_t recent_bytes RCUDA_GUARDED_BY(mirrors_mutex) = 0;  // memory that `recent` takes
  // The changes of the last host function, in order; the worker may not have them yet.
  std::vector<SentBytes> returned RCUDA_GUARDED_BY(mirrors_mutex);
  uint64_t loan RCUDA_GUARDED_BY(mirrors_mutex) = 0;  // the last loan whose bytes were merged
  // The last patch and the last loan that the newest answer contained; `recent` and `returned` have
  // only later changes.
  wire::MirrorState confirmed RCUDA_GUARDED_BY(mirrors_mutex){};
  // The two halves of the region. The worker writes and reads `lent` around host functions, and
  // writes `fetched` on request.
  std::byte* lent = nullptr;
  std::byte* fetched = nullptr;
  transport::RegionId region{};

  CUdeviceptr in_worker(size_t at) const {  // the address is the same in the worker
    return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(address + at));
  }
  // Returns the route of the stream in which the mirror's bytes are exchanged. This stream is
  // concurrent with all streams of the application.
  Route route() const { return {session, context, 0, exchanges.get()}; }
  bool overlaps(uint64_t at, size_t length) const {
    const auto base = reinterpret_cast<uintptr_t>(address);
    return at < base + bytes && base < at + length;
  }
  // Whether a word of a kernel's parameters is an address in the memory. The end address also
  // counts: a kernel may get it to walk backwards through the memory.
  bool is_named_by(uint64_t word) const {
    return word - reinterpret_cast<uintptr_t>(address) <= bytes;
  }
  bool is(MirrorStage asked) const { return stage.get() == asked; }
  // Whether the host's changes of the memory are sent as patches (mirror_patch.h). CUDA lets the
  // host write to page-locked memory while a kernel runs, but not to other mirrored memory.
  bool is_patched() const { return memory == MirroredMemory::kHost; }
  void note_missing(size_t at) RCUDA_REQUIRES(mirrors_mutex) {
    unnoted[at / kMirrorBlockBytes] = 1;
    any_unnoted.store(true);
  }
  void note_missing(const Run& run) RCUDA_REQUIRES(mirrors_mutex) {
    const size_t first = run.at / kMirrorBlockBytes * kMirrorBlockBytes;
    for (size_t at = first; at < run.at + run.bytes; at += kMirrorBlockBytes) note_missing(at);
  }
  size_t block_length(size_t at) const { return std::min(kMirrorBlockBytes, bytes - at); }
};

// Sends the blocks that the application changed, and adds their bytes to *sent_bytes. After a
// failure the rest stays unsent. `content` is scratch memory.
CUresult push(Mirror& mirror, std::vector<std::byte>* content, size_t* sent_bytes)
    RCUDA_REQUIRES(push_mutex);
// Fetches the GPU's changes: queries all mirrors in one round trip, then fetches. Returns a result
// for each mirror. After a failure the next call fetches the rest. `news`: answers that came with
// the wait, in the same order.
std::vector<CUresult> pull(const std::vector<std::shared_ptr<Mirror>>& mirrors,
                           std::span<MirrorNews> news = {}) RCUDA_REQUIRES(pull_mutex);
// Copies the bytes that the worker changed since the last exchange into the application's memory.
// `there`: the worker's bytes of the whole mirror; only those in `runs` are read. `noted`: the
// worker has noted that the client gets these bytes.
void merge(Mirror& mirror, const std::byte* there, const std::vector<Run>& runs, bool noted)
    RCUDA_REQUIRES(mirrors_mutex);
// Posts a command into the mirror's stream. From this place in the stream on, the worker counts the
// run as equal on both sides.
CUresult note_in_worker(const Mirror& mirror, const Run& run);

}  // namespace rcuda::client
