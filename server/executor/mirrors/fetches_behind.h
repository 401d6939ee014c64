// FetchesBehind: fetches of mirrored memory that the client has asked for together with a wait, and
// that are made when the wait is over. So the wait and the fetch are one round trip.
//
// The wait is named by its completion word, whatever signals it.
// Executor thread only. Nothing blocks. Errors: the CUresults that a program gets.
#pragma once

#include <cstddef>
#include <vector>

#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/handler.h"
#include "server/executor/mirrors/mirrors.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class FetchesBehind {
 public:
  // All outlive this object.
  FetchesBehind(SessionObjects& objects, Answers& answers, Mirrors& mirrors);
  ~FetchesBehind() { answers_.before_waits_end({}); }
  FetchesBehind(const FetchesBehind&) = delete;
  FetchesBehind& operator=(const FetchesBehind&) = delete;

  // Replies with the bytes of the mirror once the word is signalled. The fetch is made in the
  // current context. CUDA_ERROR_OUT_OF_MEMORY: more are asked for than a client has reply slots.
  HandlerResult add(const wire::MirrorFetchBehindBody& body, const ReplyTarget& target);
  // Replies with the news of these mirrors (Mirrors::news()) once the word is signalled.
  HandlerResult add_news(WordSignal behind, std::vector<wire::MirrorKnown> news,
                         const ReplyTarget& target);
  // Makes those whose word has been signalled. Returns whether there were any.
  bool poll();
  bool empty() const { return asked_.empty(); }

 private:
  struct Asked {
    uint64_t address = 0;
    WordSignal behind;
    wire::ObjectId context = 0;
    ReplyTarget target;
    std::vector<wire::MirrorKnown> news;  // empty: all bytes of the mirror at `address`
  };
  HandlerResult add(Asked asked);
  template <typename Due>
  bool make_all(const Due& is_due);
  void make(const Asked& asked);
  void answer_before(WordSignal signal);

  SessionObjects& objects_;
  Answers& answers_;
  Mirrors& mirrors_;
  std::vector<Asked> asked_;
};

}  // namespace rcuda::server
