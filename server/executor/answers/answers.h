// Answers: sends everything that a session reports to its client: replies, completion words, the
// error word and events.
//
// Answers are sent in the order of the calls. A sticky error is latched before its answer is sent,
// so that the client's next post() finds it as well. A broken Link is not reported here; the
// session loop notices it.
// Threads: reply(), before_waits_end() and end_wait() on the executor thread, everything else on
// any. Blocking: as Link::put(); for events see EventSink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include <cuda.h>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/completion_words.h"
#include "server/executor/answers/event_sink.h"

namespace rcuda::server {

// Where a reply goes; taken from a validated CommandHeader.
struct ReplyTarget {
  uint32_t call = 0;
  uint32_t slot = 0;
  uint32_t slot_bytes = 0;
  // kWithNext: the executor thread sends another answer directly after it.
  transport::Wake wake = transport::Wake::kNow;
  size_t capacity() const { return slot_bytes - sizeof(uint64_t) - sizeof(wire::ReplyHeader); }
};

class Answers {
 public:
  explicit Answers(transport::Link& link) : link_(link), words_(link), events_(link) {}

  // `wake`: kYes if no thread of the client is likely to wait.
  void signal(WordSignal signal, CUresult result, transport::Wake wake = transport::Wake::kNow);
  // The same at the end of work, for a thread of the client that waits for it. First calls the
  // function, which may send replies: they and the word then wake the client once.
  void end_wait(WordSignal signal, CUresult result, transport::Wake wake = transport::Wake::kNow);
  void before_waits_end(std::function<void(WordSignal)> then) { before_end_ = std::move(then); }
  // Whether the word has this sequence or a later one.
  bool has_signalled(WordSignal signal) { return words_.has(signal); }
  void reply(const ReplyTarget& target, CUresult result, std::span<const std::byte> body);
  // Sets the session's error word after a posted command failed, or work failed asynchronously. A
  // sticky error is never overwritten. The engine of peer copies latches a stream's error before it
  // releases the stream.
  void latch(CUresult error);
  // Clears the sticky error. To be called after its context was reset.
  void forget_sticky();
  EventSink& events() { return events_; }

 private:
  void publish(CUresult error) RCUDA_REQUIRES(mutex_);

  transport::Link& link_;
  CompletionWords words_;
  EventSink events_;
  std::function<void(WordSignal)> before_end_;
  Mutex mutex_;
  uint64_t errors_ RCUDA_GUARDED_BY(mutex_) = 0;
  CUresult sticky_ RCUDA_GUARDED_BY(mutex_) = CUDA_SUCCESS;
};

}  // namespace rcuda::server
