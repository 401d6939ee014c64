// Wait: a call that waits for work of the GPU, or has found it done.
//
// After the wait, the host sees what the GPU wrote to mirrored memory (mirror_sync.h), the output
// of kernels is printed, and the session's timelines are updated. A Wait returns errors of earlier
// commands. It has three forms:
//
//   Wait(route).run(body);     one command that carries a completion word; waits for the word
//
//   Wait wait(route);          several commands of the caller; each answer arrives when its command
//                              is done
//   wait.start();              before the first command
//   ...                        if a command fails, finish() is not called
//   wait.finish();             after the last answer
//
//   Wait(route).finish();      no command: the caller has found the work done
//
// Threads: a Wait belongs to one thread. Blocking: run() and finish(), until the worker has
// answered; start(), while the command ring is full; the destructor, until the answers have arrived
// (only if finish() was not called).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "client/session/session.h"

namespace rcuda::client {

class Wait {
 public:
  explicit Wait(const Route& route) : route_(route) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // run() calls `when_done` when the word has arrived without an error, before it fetches mirrored
  // memory.
  void when_done(std::function<void()> when_done) { when_done_ = std::move(when_done); }
  // Sends the command and waits for its word. Sets `body.word` and `body.sequence`.
  template <typename Body>
  CUresult run(Body body) {
    const Word word = take_word();
    body.word = word.index;
    body.sequence = word.sequence;
    return run_command(body);
  }
  // Requests mirrored memory as it is when the stream reaches this point. Returns true if it
  // requested any memory.
  bool start();
  CUresult finish();

 private:
  Session& session() const { return *route_.session; }
  Word take_word();
  CUresult run_command(const wire::Command& command);

  const Route route_;
  std::optional<WaitWord> word_;
  std::unique_ptr<MirrorQuestions> asked_;  // the queries that were sent with the wait
  // The work that the wait covers in addition to the work of its own stream.
  std::optional<Timelines::Positions> covered_;
  std::function<void()> when_done_;
};

// Blocks until everything posted so far on the route's stream is done. Sends nothing if other
// waits have covered that already.
CUresult synchronize(const Route& route);
// Like synchronize(), for everything posted in the context.
CUresult synchronize_context(Session& session, wire::ObjectId context);
// Calls synchronize(), so that the host sees the GPU's writes. Does nothing if the GPU cannot have
// written since the last such call.
CUresult await_writes(const Route& route);

}  // namespace rcuda::client
