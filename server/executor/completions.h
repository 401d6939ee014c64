// Completions: what is to happen when a stream has got somewhere, without ever waiting for it.
//
// add() records an event on the stream and remembers what to do; poll() asks the driver for the
// oldest event of each stream (within a stream they complete in order) and does it. So the executor
// thread goes on with other commands while any number of threads of the client wait.
// Events come from a pool per context and go back to it. After an asynchronous error every pending
// completion comes due with that error, as every wait in CUDA would.
// One thread: the executor's. Nothing here blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"
#include "server/executor/completion_words.h"
#include "server/executor/pool_frees.h"

namespace rcuda::server {

class Executor;
struct ContextState;
struct StreamRef;

// Called once, on the executor thread, with how the stream got there.
using WhenDone = std::function<void(CUresult)>;

class Completions {
 public:
  explicit Completions(Executor& executor) : executor_(executor), pool_frees_(executor) {}
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // When everything queued on the stream so far is done. A stream that cannot take an event is done
  // at once, with the driver's error. `prints`: somebody on the client's side waits for this point,
  // so what kernels printed before it must arrive first.
  void add(const StreamRef& stream, WordSignal signal, bool prints);
  void add(const StreamRef& stream, WhenDone when_done);
  // When the latest record so far of the client's event is done. `waits`: somebody waits for it.
  // Otherwise one watch of an event is kept, and only while it is not recorded again.
  void watch(wire::ObjectId id, WordSignal signal, bool waits);
  // The event is about to be named by a command, perhaps to be recorded again: who waits goes on
  // with a private event that stands for the record he waits for. It takes a stream of its own,
  // and a device's queues are few: a stream that waits may hold others up.
  void move_watches(wire::ObjectId id);
  // The client's event is about to be recorded, or was destroyed: nobody waits for what it stood
  // for. While a capture has it, asking the driver for it would end the capture.
  void forget_event(CUevent event);

  // Does what has come due; true if there was anything.
  bool poll();
  bool empty() const { return active_.empty() && watches_.empty(); }
  // Streams of this object that wait for events of the program.
  size_t waiting_streams() const;
  // A stream was destroyed; what is pending in it still comes due.
  void forget_stream(uint64_t key);
  // A context is about to be destroyed or reset: its completions come due with `error`.
  void drop_context(ContextState& context, CUresult error);
  PoolFrees& pool_frees() { return pool_frees_; }

 private:
  struct Pending {
    CUevent event = nullptr;
    ContextState* context = nullptr;
    WordSignal signal;
    bool prints = false;
    WhenDone when_done;
    wire::ObjectId stream = 0;  // whose done_use moves on to `use`
    uint64_t use = 0;
  };
  struct Queue {
    uint64_t key = 0;
    ContextState* context = nullptr;
    std::deque<Pending> pending;
    bool active = false;     // in active_
    bool forgotten = false;  // its stream is gone
  };
  struct Watch {
    wire::ObjectId id = 0;  // 0: moved to a private event
    bool waits = false;
    CUevent event = nullptr;
    CUstream stream = nullptr;  // the private event's, back to the pool afterwards
    ContextState* context = nullptr;
    WordSignal signal;
  };

  CUresult take_event(ContextState& context, CUevent* event);
  void enqueue(const StreamRef& stream, Pending pending);
  void finish(Pending& pending, uint64_t key, CUresult result);
  void finish(Watch& watch, CUresult result);
  void move(Watch& watch);
  // The executor flushes device output before an answer that somebody waits for; once per poll.
  void flush_output(ContextState& context);

  Executor& executor_;
  PoolFrees pool_frees_;
  // By StreamRef::key, from a stream's first completion to its end: waiting for a stream is too
  // frequent to make a queue each time.
  std::unordered_map<uint64_t, std::unique_ptr<Queue>> queues_;
  std::vector<Queue*> active_;  // that are not empty, and those being emptied
  std::vector<Watch> watches_;
};

}  // namespace rcuda::server
