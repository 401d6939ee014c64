// Completions: actions that run when a stream has reached a point. No thread blocks for them.
//
// add() records an event on the stream and stores the action. poll() finds out how far each stream
// has got, by its GPU-written words or by a query of its last and its oldest event (within a stream
// events complete in order), and runs the actions up to that point. So the executor thread
// continues with other commands while any number of client threads wait.
// Events come from a pool per context and return to it. After an asynchronous error every pending
// completion ends with that error, like every wait in CUDA.
// Executor thread only. Nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/pool_frees.h"
#include "server/executor/streams/work_count.h"

namespace rcuda::server {

// Called once, on the executor thread, with the result of the stream's work.
using WhenDone = std::function<void(CUresult)>;

class Completions {
 public:
  struct Marks {
    std::span<std::byte> memory;  // page-locked zeros, for the GPU-written words
    size_t most_streams = 0;      // SessionResources::most_streams
  };
  // All outlive this object.
  Completions(const api::DriverTable& driver, SessionObjects& objects, WorkCount& work,
              Answers& answers, DeviceOutput& output, PoolFrees& pool_frees, const Marks& marks);
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Signals, or calls `when_done`, when all work queued on the stream so far is done. If the event
  // cannot be recorded, this happens at once, with the driver's error. `prints`: a thread of the
  // client waits for this point, so the output of earlier kernels must arrive first.
  void add(const SessionStream& stream, WordSignal signal, bool prints);
  void add(const SessionStream& stream, WhenDone when_done);
  // As add(), for a thread of the client that waits for nothing else. If possible, the GPU also
  // writes the signal's sequence into the GPU-written word (u64) that belongs to the completion
  // word. Client and worker see this word before the driver reports the event. The GPU does not
  // write it
  //   - if kernels may print, or memory was freed in stream order: their output, or the release of
  //     the memory, needs the driver's event as well;
  //   - in the legacy stream: PyTorch's `.item()`, which waits for the legacy stream, took longer
  //     with GPU-written words (H100);
  //   - in sessions with SessionResources::most_streams streams or more (0: no limit), because
  //     streams may then share a device's queues for kernels. Unlike a copy, the write goes through
  //     such a queue. So it may have to wait for another stream's work, which may itself wait for
  //     the program;
  //   - if two completions of the stream are pending already: the client would gain nothing, and
  //     the write takes a place in the stream's queue.
  void await(const SessionStream& stream, WordSignal signal);
  // The GPU-written words, for the client to map. Empty if the GPU never writes any.
  std::span<std::byte> marks() const { return std::as_writable_bytes(marks_); }
  // Signals when the latest record so far of the client's event is done. kWait: a thread of the
  // client waits for it. kReport: only the latest watch of an event is kept, and only until the
  // event is recorded again. kQuery: signals at once, with CUDA_ERROR_NOT_READY if the record is
  // not done.
  void watch(wire::ObjectId id, WordSignal signal, wire::WatchFor purpose);
  // Returns the driver's event, for a command that may record it again. First moves the event's
  // watches of kWait to private events. A private event completes together with the record that its
  // watch waits for. Watches of kReport are not moved, because each private event needs a stream of
  // its own. A device has few queues, so a stream that waits may block other streams.
  CUresult event_for_command(wire::ObjectId id, CUevent* event);
  // Drops the watches of a client's event that is about to be recorded or was destroyed. No thread
  // waits for these watches: event_for_command() has moved the watches of kWait. The watches must
  // go, because the record may be captured, and querying a captured event invalidates the capture.
  void forget_event(CUevent event);

  // Signals the watches of kWait whose record is reached. Called between the commands of a burst,
  // so it queries only a few events, and leaves the sending to a thread of the Link if one is
  // awake.
  void poll_watches();
  // Runs the actions of complete events. Returns whether there were any.
  bool poll();
  bool empty() const { return active_.empty() && watches_.empty(); }
  // The number of streams of this object that wait for events of the program (private events).
  size_t waiting_streams() const;
  // To be called when a stream is destroyed. Its pending completions still run.
  void forget_stream(uint64_t key);
  // To be called before a context is destroyed or reset. Ends its pending completions with `error`.
  void drop_context(ContextState& context, CUresult error);

 private:
  struct Pending {
    uint64_t number = 0;  // increases over all completions of this object
    CUevent event = nullptr;
    ContextState* context = nullptr;
    WordSignal signal;
    bool prints = false;
    bool marked = false;  // the GPU will write the signal's GPU-written word
    WhenDone when_done;
    wire::ObjectId stream = 0;  // the stream whose done_use becomes `use`
    uint64_t use = 0;
  };
  struct Queue {
    uint64_t key = 0;
    ContextState* context = nullptr;
    std::deque<Pending> pending;
    bool active = false;     // in active_
    bool forgotten = false;  // its stream was destroyed
    uint32_t looks = 0;      // counts the polls of this queue, for look()
  };
  struct Watch {
    wire::ObjectId id = 0;  // 0: moved to a private event
    bool waits = false;     // kWait
    CUevent event = nullptr;
    CUstream stream = nullptr;  // the private event's stream; returns to the pool afterwards
    ContextState* context = nullptr;
    WordSignal signal;
  };

  bool queue_mark(const SessionStream& stream, WordSignal signal);
  bool is_marked(const Pending& pending) const;
  CUresult look(Queue& queue, uint64_t* reached);
  bool finish_reached(Queue& queue);
  CUresult take_event(ContextState& context, CUevent* event);
  void enqueue(const SessionStream& stream, Pending pending);
  void finish(Pending& pending, uint64_t key, CUresult result);
  void finish(Watch& watch, CUresult result, transport::Wake wake = transport::Wake::kNow);
  template <typename Ask>
  bool end_watches(const Ask& ask, transport::Wake wake = transport::Wake::kNow);
  void move_watches(wire::ObjectId id);
  void move(Watch& watch);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  WorkCount& work_;
  Answers& answers_;
  DeviceOutput& output_;
  PoolFrees& pool_frees_;
  // By SessionStream::key, from a stream's first completion until the stream is destroyed. Programs
  // wait for streams too often to make a queue for each wait.
  std::unordered_map<uint64_t, std::unique_ptr<Queue>> queues_;
  std::vector<Queue*> active_;  // queues that are not empty, or are being emptied
  std::vector<Watch> watches_;
  uint64_t last_number_ = 0;
  const std::span<uint64_t> marks_;
  const size_t most_streams_;
};

}  // namespace rcuda::server
