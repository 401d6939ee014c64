// The worker's answer that a stream or an event is not done, kept for later queries.
//
// The worker writes a completion word when the work is done. Until then, and until the client
// learns something new (News::count()), queries need not ask the worker again.
//
// Threads: any thread may call holds(), which takes no lock because programs poll. The owner, a
// Timeline or an EventState, holds its own mutex while it calls set() and clear().
#pragma once

#include <atomic>
#include <cstdint>

#include "client/session/completion_words.h"
#include "client/session/timeline_host.h"

namespace rcuda::client {

class PendingAnswer {
 public:
  // Stores the worker's answer that the work is not done. `news`: News::count() when the query was
  // sent. When the work is done, the worker raises the word to `word.sequence`.
  void set(const Word& word, uint64_t news);
  // Drops the answer, which no longer applies to the owner's work.
  void clear() { news_.store(0, std::memory_order_release); }

  // Whether the answer still holds. If another thread calls set() at the same time, word and
  // sequence may come from two answers. True is correct even then, since both answers were "not
  // done". After false the caller locks its mutex and checks again.
  bool holds(const TimelineHost& host) const;

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> news_{0};  // 0: no answer
};

}  // namespace rcuda::client
