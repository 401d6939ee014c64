// Fetches small mirrors at the end of a wait. The client sends the queries together with the wait,
// and the worker answers them when the wait is over, so all this is one round trip. Several mirrors
// of page-locked memory share a query for the bytes that changed (mirror_news.h); others are
// fetched whole.
//
// Threads: any; an object belongs to one thread. Blocking: ask(), while the command ring is full;
// take(), news() and the destructor, until the worker has answered.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "client/mirror/mirror_exchange.h"
#include "client/mirror/mirror_news.h"
#include "client/session/session.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class FetchesWithWait final : public MirrorQuestions {
 public:
  explicit FetchesWithWait(Session& session) : session_(session) {}
  ~FetchesWithWait() override;

  // Asks for the bytes of these mirrors as they are when the worker signals `word`. Leaves out
  // large mirrors, mirrors beyond the limits for one wait, and mirrors without a free reply slot.
  // The queries do not wake the worker: the caller's next command must wake it.
  void ask(const std::vector<std::shared_ptr<Mirror>>& mirrors, Word word);
  bool empty() const { return questions_.empty() && news_.empty(); }
  // Merges the answer for this mirror. Returns false if there is no answer for it, or if the
  // client's bytes may be newer than the answer. The caller then fetches the mirror as usual.
  bool take(Mirror& mirror) RCUDA_REQUIRES(pull_mutex);
  // Returns the answers for the mirrors that share a query. Call it once.
  std::vector<MirrorNews> news();

 private:
  struct Question {
    std::shared_ptr<Mirror> mirror;
    uint64_t version = 0, sent_versions = 0;  // of the mirror, when the query was sent
    Session::PendingCall call;
    bool answered = false;
  };
  void ask_alone(const std::shared_ptr<Mirror>& mirror, Word word);
  CUresult answer(Question& question, Reply* reply);

  Session& session_;
  std::deque<Question> questions_;  // a deque, because a PendingCall must not move
  std::vector<MirrorNews> news_;
  std::optional<Session::PendingCall> news_call_;
};

}  // namespace rcuda::client
