#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/mirror/mirror_exchange.h"
#include "client/mirror/mirror_news.h"
#include "client/mirror/mirror_patch.h"
#include "client/mirror/take_changes.h"
#include "client/session/calls_in_flight.h"
#include "client/session/staging.h"
#include "client/session/task_pool.h"
#include "common/base/mutex.h"

namespace rcuda::client {

void merge(Mirror& mirror, const std::byte* there, const std::vector<Run>& runs, bool noted) {
  const std::vector<Run> pieces = pieces_of(runs, kMirrorPieceBytes);
  const bool is_new = mirror.is(MirrorStage::kNew);
  run_parallel(pieces.size(), [&](size_t index) RCUDA_REQUIRES(mirrors_mutex) {
    const Run& piece = pieces[index];
    for (size_t at = piece.at; at < piece.at + piece.bytes; at += kMirrorBlockBytes) {
      const size_t length = mirror.block_length(at);
      std::byte* const known = mirror.known.get() + at;
      std::byte* const here = mirror.address + at;
      if (is_new) {
        std::memcpy(here, there + at, length);
        std::memcpy(known, there + at, length);
      } else if (!take_changes(here, known, there + at, length)) {
        continue;
      }
      if (!noted) mirror.note_missing(at);
      mirror.exchanged[at / kMirrorBlockBytes] = 1;
    }
  });
  mirror.stage.move(MirrorEvent::kExchange, mirror.name);
  ++mirror.version;
}

namespace {

// Adds to *runs the blocks that were exchanged without a note in the worker (Mirror::unnoted), and
// clears their marks. The worker does not know whether the GPU has changed them.
void take_unnoted(Mirror& mirror, std::vector<Run>* runs) {
  MutexLock lock(mirrors_mutex);
  if (!mirror.any_unnoted.exchange(false)) return;
  for (size_t at = 0; at < mirror.bytes; at += kMirrorBlockBytes) {
    if (!std::exchange(mirror.unnoted[at / kMirrorBlockBytes], 0)) continue;
    append(runs, {at, mirror.block_length(at)});
  }
}

// The work of pull() for one mirror.
struct Pull {
  std::shared_ptr<Mirror> mirror;
  CUresult result = CUDA_SUCCESS;
  uint64_t version = 0;            // Mirror::version before the query
  wire::MirrorState state{};       // of the bytes that this pull fetches
  std::optional<MirrorNews> news;  // has the GPU's changes, instead of the mirror's `unfetched`
};

bool take_state(Pull& pull, const Reply& reply) {
  if (reply.body().size() < sizeof pull.state) return false;
  std::memcpy(&pull.state, reply.body().data(), sizeof pull.state);
  return true;
}

// Requests the bytes of the whole mirror, and sets `unfetched` to all of it.
void ask_for_all(Pull& pull, CallsInFlight* calls) RCUDA_REQUIRES(pull_mutex) {
  Mirror& mirror = *pull.mirror;
  mirror.unfetched = {{0, mirror.bytes}};
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  calls->add(mirror.session->in_context(mirror.context), body, sizeof(wire::MirrorState),
             [&pull](CUresult result, const Reply& reply) {
               if (result == CUDA_SUCCESS && !take_state(pull, reply)) result = CUDA_ERROR_UNKNOWN;
               pull.result = result;
             });
}

// Adds to the mirror's `unfetched` the runs of changed blocks from the worker's reply.
CUresult take_runs(Pull& pull, const Reply& reply) RCUDA_REQUIRES(pull_mutex) {
  if (!take_state(pull, reply)) return CUDA_ERROR_UNKNOWN;
  Mirror& mirror = *pull.mirror;
  for (size_t at = sizeof pull.state; at + sizeof(wire::MirrorRun) <= reply.body().size();
       at += sizeof(wire::MirrorRun)) {
    wire::MirrorRun run;
    std::memcpy(&run, reply.body().data() + at, sizeof run);
    const size_t begin = run.first * mirror.changes_bytes;
    if (begin >= mirror.bytes || run.count > mirror.bytes) return CUDA_ERROR_UNKNOWN;
    mirror.unfetched.push_back(
        {begin, std::min(run.count * mirror.changes_bytes, mirror.bytes - begin)});
  }
  return CUDA_SUCCESS;
}

// Asks which blocks the GPU has changed.
void ask_for_changes(Pull& pull, CallsInFlight* calls) RCUDA_REQUIRES(pull_mutex) {
  Mirror& mirror = *pull.mirror;
  take_unnoted(mirror, &mirror.unfetched);
  const wire::MirrorChangesBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  calls->add(mirror.session->in_context(mirror.context), body, CallsInFlight::kMostReplyBytes,
             [&pull](CUresult result, const Reply& reply) RCUDA_REQUIRES(pull_mutex) {
               pull.result = result == CUDA_SUCCESS ? take_runs(pull, reply) : result;
             });
}

// The number of pulls that fetch all bytes after an answer had no room for the GPU's changes.
// Repeated work probably changes as many bytes again, and the query costs a round trip.
constexpr int kPullsWithoutNews = 8;

bool is_worth_a_question(Mirror& mirror) {
  if (!may_have_news(mirror)) return false;
  MutexLock lock(mirrors_mutex);
  if (mirror.pulls_without_news == 0) return true;
  --mirror.pulls_without_news;
  return false;
}

void ask(const std::vector<Pull*>& pulls) RCUDA_REQUIRES(pull_mutex) {
  std::map<Session*, std::pair<std::vector<Pull*>, std::vector<MirrorNews>>> small;
  CallsInFlight calls;
  for (Pull* const pull : pulls) {
    if (pull->news) continue;  // the answer came with the wait
    Mirror& mirror = *pull->mirror;
    {
      MutexLock lock(mirrors_mutex);
      pull->version = mirror.version;
    }
    if (mirror.changes_bytes != 0) {
      ask_for_changes(*pull, &calls);
    } else if (is_worth_a_question(mirror)) {
      auto& [asking, news] = small[mirror.session];
      asking.push_back(pull);
      news.emplace_back(pull->mirror);
    } else {
      ask_for_all(*pull, &calls);
    }
  }
  // If the mirrors together have only a few bytes, all bytes are fetched, which costs no more than
  // a query.
  constexpr size_t kFewBytes = 512;
  for (auto& [session, asked] : small) {
    auto& [asking, news] = asked;
    size_t bytes = 0;
    for (const Pull* pull : asking) bytes += pull->mirror->bytes;
    if (bytes > kFewBytes) {
      ask_for_news(news, &calls);
    } else {
      for (Pull* pull : asking) ask_for_all(*pull, &calls);
      asking.clear();
    }
  }
  calls.finish();
  for (auto& [session, asked] : small) {
    for (size_t i = 0; i < asked.first.size(); ++i) asked.first[i]->news = asked.second[i];
  }
}

// Fetches all bytes of the mirrors whose changes did not fit into the answer.
void fetch_rest(const std::vector<Pull*>& pulls) RCUDA_REQUIRES(pull_mutex) {
  CallsInFlight calls;
  for (Pull* const pull : pulls) {
    if (!pull->news) continue;
    pull->result = pull->news->result;
    pull->state = pull->news->state;
    pull->mirror->unfetched.clear();
    if (pull->result != CUDA_SUCCESS || pull->news->is_complete) continue;
    if (pull->news->known != 0) {
      MutexLock lock(mirrors_mutex);
      pull->mirror->pulls_without_news = kPullsWithoutNews;
    }
    pull->news.reset();
    ask_for_all(*pull, &calls);
  }
}

// Fetches the runs that the worker has named and whose bytes are not in its answer. Small runs
// travel in replies, in one round trip. Larger runs go through the staging region, which uses more
// sockets.
void fetch(const std::vector<Pull*>& pulls) RCUDA_REQUIRES(pull_mutex) {
  constexpr size_t kMostInReplies = 256 << 10;
  struct Staged {
    std::vector<Pull*> pulls;
    std::vector<Staging::Part> parts;
  };
  std::map<Timeline*, Staged> staged;  // by Mirror::exchanges
  CallsInFlight calls;
  for (Pull* const pull : pulls) {
    Mirror& mirror = *pull->mirror;
    if (mirror.changes_bytes == 0) continue;
    for (const Run& run : mirror.unfetched) {
      const size_t bytes = std::min(run.bytes, mirror.bytes - run.at);
      if (pull->result == CUDA_SUCCESS) pull->result = note_in_worker(mirror, {run.at, bytes});
      if (pull->result != CUDA_SUCCESS) break;
      std::byte* const to = mirror.fetched + run.at;
      if (bytes <= kMostInReplies) {
        calls.add_copy(mirror.route(), to, mirror.in_worker(run.at), bytes, &pull->result);
      } else {
        Staged& of_stream = staged[mirror.exchanges.get()];
        of_stream.pulls.push_back(pull);
        of_stream.parts.push_back({to, mirror.in_worker(run.at), bytes});
      }
    }
  }
  for (const auto& [stream, all] : staged) {
    const Mirror& mirror = *all.pulls.front()->mirror;
    const CUresult result = mirror.session->staging().to_host(mirror.route(), all.parts);
    for (Pull* const pull : all.pulls) {
      if (pull->result == CUDA_SUCCESS) pull->result = result;
    }
  }
}

// Queries all mirrors, then fetches the GPU's changes.
void fetch_changes(const std::vector<Pull*>& pulls) RCUDA_REQUIRES(pull_mutex) {
  ask(pulls);
  fetch_rest(pulls);
  for (Pull* const pull : pulls) {
    Mirror& mirror = *pull->mirror;
    if (pull->result == CUDA_SUCCESS && mirror.changes_bytes != 0) join(&mirror.unfetched);
  }
  fetch(pulls);
}

// Releases the memory of a large fetch after many small pulls. The memory is not released at once,
// because new pages cost 0.7 ms per MB, as much as some fetches. It is never released if the
// adapter of the Link keeps the pages, or if the worker itself writes to the memory.
void free_fetched(Mirror& mirror) RCUDA_REQUIRES(pull_mutex) {
  constexpr size_t kLarge = 4 << 20;
  constexpr int kPulls = 16;
  if (mirror.changes_bytes == 0 || mirror.session->traits().has_adapter) return;
  if (bytes_of(mirror.unfetched) > kLarge) {
    mirror.pulls_to_free = kPulls;
  } else if (mirror.pulls_to_free > 0 && --mirror.pulls_to_free == 0) {
    (void)madvise(mirror.fetched, mirror.bytes, MADV_REMOVE);
  }
}

// Takes over the fetched bytes. Returns false if they must be fetched again. With `last`, always
// returns true.
bool take_over(Pull& pull, bool last) RCUDA_REQUIRES(pull_mutex) {
  Mirror& mirror = *pull.mirror;
  MutexLock lock(mirrors_mutex);
  // If another thread has ended the mirror, the worker may already have dropped the mirror and
  // refused the fetch, so a failure is not an error.
  if (mirror.is(MirrorStage::kEnded) && pull.result != kSessionLost) {
    pull.result = CUDA_SUCCESS;
    return true;
  }
  const bool failed = pull.result != CUDA_SUCCESS;
  mirror.stage.move(failed ? MirrorEvent::kFailedFetch : MirrorEvent::kFetch, mirror.name);
  if (failed) return true;
  const bool any = pull.news ? !pull.news->runs.empty() : !mirror.unfetched.empty();
  const bool outdated = is_outdated(mirror, pull.state);
  // If another exchange took place during the call, the fetched bytes may be older than the
  // client's.
  if (any && (mirror.version != pull.version || outdated) && !last) {
    pull.news.reset();
    return false;
  }
  if (!any) {
    forget_confirmed(mirror, pull.state);
  } else if (!outdated) {
    const std::vector<Run> runs = pull.news ? place_news(*pull.news) : mirror.unfetched;
    merge_fetched(mirror, mirror.fetched, runs, pull.state);
  }
  if (mirror.changes_bytes == 0 && !(any && outdated)) mirror.answer = pull.state.answer;
  lock.unlock();
  free_fetched(mirror);
  mirror.unfetched.clear();
  return true;
}

// Uses an answer that came with the wait, except in two cases. With `may_lack`, an incomplete
// answer may lack changes because its slot was small. An answer with changes is used only if all
// exchanges since the query were patches; merge_fetched() adds the patches that the answer lacks.
void take_early(Pull& pull, MirrorNews& news, bool may_lack) {
  if (news.result != CUDA_SUCCESS || (!news.is_complete && may_lack)) return;
  Mirror& mirror = *pull.mirror;
  MutexLock lock(mirrors_mutex);
  if (mirror.version - mirror.sent_versions != news.version - news.sent_versions) {
    if (!news.runs.empty()) return;
    news.state.answer = mirror.answer;  // the last answer that another thread took over
  }
  pull.version = mirror.version;
  pull.news = std::move(news);
}

}  // namespace

std::vector<CUresult> pull(const std::vector<std::shared_ptr<Mirror>>& mirrors,
                           std::span<MirrorNews> news) {
  std::vector<Pull> pulls(mirrors.size());
  std::vector<Pull*> due;
  const bool may_lack = news.size() <= kFewNews;
  for (size_t i = 0; i < mirrors.size(); ++i) {
    pulls[i].mirror = mirrors[i];
    due.push_back(&pulls[i]);
    const auto asked = std::find_if(
        news.begin(), news.end(), [&](const MirrorNews& one) { return one.mirror == mirrors[i]; });
    if (asked == news.end()) continue;
    take_early(pulls[i], *asked, may_lack);
    news = {asked + 1, news.end()};  // news and pulls have the same order
  }
  // The number of attempts is limited: a stream whose work never ends must not block the caller
  // indefinitely. The bytes of the last attempt are used unless they are outdated (is_outdated()).
  constexpr int kAttempts = 5;
  for (int attempt = 1; !due.empty(); ++attempt) {
    fetch_changes(due);
    std::erase_if(due, [&](Pull* pull) RCUDA_REQUIRES(pull_mutex) {
      return take_over(*pull, attempt == kAttempts);
    });
  }
  std::vector<CUresult> results;
  for (const Pull& pull : pulls) results.push_back(pull.result);
  return results;
}

}  // namespace rcuda::client
