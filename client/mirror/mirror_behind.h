// Fetches of small mirrors that the worker makes when a wait is over. The client asks for them
// together with the wait, so both are one round trip.
//
// Threads: any; an object belongs to one thread. Blocking: take() and the destructor, until the
// worker has answered, which it does when the wait is over.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "client/mirror/mirror_exchange.h"
#include "client/session/session.h"

namespace rcuda::client {

class MirrorsBehind final : public FetchesBehind {
 public:
  explicit MirrorsBehind(Session& session) : session_(session) {}
  ~MirrorsBehind() override;

  // Asks for the bytes of the mirror as they are when the word is signalled. Does nothing for a
  // mirror that is large, or if there are no free reply slots.
  void ask(const std::shared_ptr<Mirror>& mirror, Word word);
  bool empty() const { return questions_.empty(); }
  // Takes over the bytes of the mirror that has been asked for. Returns false if there are none, or
  // others may be newer: then it is fetched as usual. pull_mutex is held.
  bool take(Mirror& mirror);

 private:
  struct Question {
    std::shared_ptr<Mirror> mirror;
    uint64_t version = 0;  // of the mirror, when it was asked for
    Session::PendingCall call;
    bool answered = false;
  };
  CUresult answer(Question& question, Reply* reply);

  Session& session_;
  std::deque<Question> questions_;  // a call does not move
};

}  // namespace rcuda::client
