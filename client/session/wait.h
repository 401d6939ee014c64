// Wait: a call that waits for work of the GPU, or has found it done.
//
// When it has finished, the host sees what the GPU wrote to mirrored memory (mirror_sync.h), what
// kernels printed is out, and the session's timelines know what is done. It returns errors of
// earlier commands. It takes one of these forms:
//
//   Wait(route).run(body);     one command that carries a completion word; waits for the word
//
//   Wait wait(route);          several commands of the caller, whose answers tell that they are
//   done: wait.start();              before the first of them
//   ...                        if they fail, nothing more
//   wait.finish();             after the last answer
//
//   Wait(route).finish();      no command: the caller has found the work done
//
// Threads: a Wait belongs to one thread. Blocking: run() and finish(), until the worker has
// answered; start(), while the command ring is full and until the worker has the host's writes; the
// destructor, for answers that finish() did not take.
#pragma once

#include <memory>
#include <optional>

#include "client/session/session.h"

namespace rcuda::client {

class Wait {
 public:
  explicit Wait(const Route& route) : route_(route) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Sets `body.word` and `body.sequence`.
  template <typename Body>
  CUresult run(Body body) {
    const Word word = take_word();
    body.word = word.index;
    body.sequence = word.sequence;
    return run_command(body);
  }
  // Requests mirrored memory as it is when the stream gets here. Returns whether it requested any.
  bool start();
  CUresult finish();

 private:
  Session& session() const { return *route_.session; }
  Word take_word();
  CUresult run_command(const wire::Command& command);

  const Route route_;
  std::optional<WaitWord> word_;
  std::unique_ptr<MirrorQuestions> asked_;  // for when the word is signalled
  // What the wait covers besides its own stream.
  std::optional<Timelines::Positions> covered_;
};

// Blocks until everything posted so far on the route's stream is done. Sends nothing if other
// waits have covered that already.
CUresult synchronize(const Route& route);
// The same for everything posted in the context.
CUresult synchronize_context(Session& session, wire::ObjectId context);
// synchronize(), so that the host sees what the GPU wrote; not if it cannot have written since the
// last such call.
CUresult await_writes(const Route& route);

}  // namespace rcuda::client
