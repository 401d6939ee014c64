// Answers: sends everything that a session reports to its client: replies, completion words, the
// error word and events.
//
// Answers are sent in the order in which these functions are called. If an answer reports a sticky
// error, the error word gets the error first, so that the client's next Session::post() finds it as
// well. A broken Link is not reported here; the session loop notices it.
// Threads: reply(), before_waits_end() and end_wait() on the executor thread, all other functions
// on any thread. Blocking: as Link::put(); for events see EventSink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <cuda.h>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/event_sink.h"

namespace rcuda::server {

// Where a reply goes; taken from a validated CommandHeader.
struct ReplyTarget {
  uint32_t call = 0;
  uint32_t slot = 0;
  uint32_t slot_bytes = 0;
  // kWithNext: the executor thread sends another answer directly after this reply.
  transport::Wake wake = transport::Wake::kNow;
  size_t capacity() const { return slot_bytes - sizeof(uint64_t) - sizeof(wire::ReplyHeader); }
};

// A completion word, and the sequence to write into it. Sequence 0: nothing to signal.
struct WordSignal {
  uint32_t word = 0;  // index; below ClientWindow::kCompletionCount
  uint64_t sequence = 0;
};

class Answers {
 public:
  explicit Answers(transport::Link& link) : link_(link), events_(link) {}

  // Writes a completion word, which reports the progress of work. The word's value only grows, and
  // an older signal is dropped: a destroyed stream may still signal a word that the client already
  // uses for another stream. `wake`: kYes if no thread of the client is likely to wait.
  void signal(WordSignal signal, CUresult result, transport::Wake wake = transport::Wake::kNow);
  // As signal(), at the end of work that a thread of the client waits for. First calls the function
  // that before_waits_end() has set. The function may send replies that arrive together with the
  // word, so the client wakes once.
  void end_wait(WordSignal signal, CUresult result, transport::Wake wake = transport::Wake::kNow);
  void before_waits_end(std::function<void(WordSignal)> then) { before_end_ = std::move(then); }
  // Whether the word has this sequence or a later one.
  bool has_signalled(WordSignal signal);
  void reply(const ReplyTarget& target, CUresult result, std::span<const std::byte> body);
  // Sets the session's error word after a posted command failed, or work failed asynchronously. A
  // sticky error is never overwritten. Returns the number of the error, or 0 if an earlier sticky
  // error stays. The engine of peer copies calls this before it releases the stream of a failed
  // copy, so the client finds the error when it learns that the stream has gone on.
  uint64_t latch(CUresult error);
  // Removes the error with this number, because the program has received it in another way. If
  // there is no later error, the error word has the previous error again. The client skips errors
  // whose number it has reported.
  void withdraw(uint64_t number);
  // Sets the park word of the client (ClientWindow::kParkWord).
  void show_park_word(uint64_t word);
  // Clears the sticky error. To be called after the context with the error was reset.
  void forget_sticky();
  EventSink& events() { return events_; }

 private:
  static constexpr size_t kMostKept = 16;  // values in errors_

  uint64_t publish(CUresult error) RCUDA_REQUIRES(mutex_);
  void put_error_word(uint64_t value) RCUDA_REQUIRES(mutex_);

  transport::Link& link_;
  EventSink events_;
  std::function<void(WordSignal)> before_end_;
  // Held across the put, so that two threads write a word in the order of its values.
  Mutex words_mutex_;
  std::vector<uint64_t> words_ RCUDA_GUARDED_BY(words_mutex_) =
      std::vector<uint64_t>(wire::ClientWindow::kCompletionCount);
  Mutex mutex_;
  uint64_t last_error_ RCUDA_GUARDED_BY(mutex_) = 0;           // the last error's number
  std::deque<uint64_t> errors_ RCUDA_GUARDED_BY(mutex_) = {};  // the last values of the error word
  CUresult sticky_ RCUDA_GUARDED_BY(mutex_) = CUDA_SUCCESS;
};

}  // namespace rcuda::server
