// Fetches the GPU's changes in small mirrors of page-locked memory. One query covers many mirrors,
// and its answer has only the bytes that the client lacks.
//
// Threads: any; each function says which locks its caller holds. Blocking: ask_for_news(), like
// CallsInFlight::add(); begin_news(), while the command ring is full.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <cuda.h>

#include "client/mirror/mirror_exchange.h"
#include "client/session/calls_in_flight.h"
#include "common/base/mutex.h"

namespace rcuda::client {

// The query about one mirror, and the answer.
struct MirrorNews {
  explicit MirrorNews(std::shared_ptr<Mirror> asked);

  std::shared_ptr<Mirror> mirror;
  // Mirror::answer, version and sent_versions when the query was made.
  uint64_t known = 0, version = 0, sent_versions = 0;
  CUresult result = CUDA_SUCCESS;
  bool is_complete = false;  // false: all bytes have to be fetched
  wire::MirrorState state{};
  std::vector<Run> runs;         // the changed bytes
  std::vector<std::byte> bytes;  // of the runs, one after the other
};

// The most mirrors in one query. With this number, most of the answer's room is left for bytes.
inline constexpr size_t kMostNewsAtOnce = 512;

// A query that goes with a wait gets a small reply slot if it covers at most this number of
// mirrors. If the changes do not fit, a later query with a large slot may get them.
inline constexpr size_t kFewNews = 4;

// Whether the client may ask for news: the mirror is small page-locked memory, and its worker
// supports the query. For other memory, the worker does not record which bytes the client has.
bool may_have_news(const Mirror& mirror);
// Asks for the news of mirrors of one session. `calls` fills in the answers.
void ask_for_news(std::span<MirrorNews> mirrors, CallsInFlight* calls);
// Asks for the news of at most kMostNewsAtOnce mirrors of one session, as they are when the worker
// signals `word`. The query travels with the caller's next command. Returns false if few reply
// slots are free.
bool begin_news(std::span<const MirrorNews> mirrors, Word word, Session::PendingCall* call);
// Fills in the answers from the reply to the query of begin_news().
void take_news(std::span<MirrorNews> mirrors, CUresult result, const Reply& reply);
// Writes the bytes of `news` into Mirror::fetched, and fills the rest of each changed block with
// bytes that both sides have. Returns the blocks with changes.
std::vector<Run> place_news(const MirrorNews& news) RCUDA_REQUIRES(mirrors_mutex);

}  // namespace rcuda::client
