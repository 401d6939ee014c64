// Completions: what is to happen when a stream has reached a point, without waiting for it.
//
// add() records an event on the stream and remembers what to do. poll() queries the oldest event of
// each stream (within a stream events complete in order) and does what has come due. So the
// executor thread goes on with other commands while any number of client threads wait.
// Events come from a pool per context and go back to it. After an asynchronous error every pending
// completion comes due with that error, as every wait in CUDA would.
// Executor thread only. Nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
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

// Called once, on the executor thread, with how the stream got there.
using WhenDone = std::function<void(CUresult)>;

class Completions {
 public:
  // All outlive this object.
  Completions(const api::DriverTable& driver, SessionObjects& objects, WorkCount& work,
              Answers& answers, DeviceOutput& output, PoolFrees& pool_frees)
      : driver_(driver),
        objects_(objects),
        work_(work),
        answers_(answers),
        output_(output),
        pool_frees_(pool_frees) {}
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // When everything queued on the stream so far is done. A stream that cannot take an event is done
  // at once, with the driver's error. `prints`: somebody on the client's side waits for this point,
  // so what kernels printed before it must arrive first.
  void add(const SessionStream& stream, WordSignal signal, bool prints);
  void add(const SessionStream& stream, WhenDone when_done);
  // When the latest record so far of the client's event is done. `waits`: somebody waits for it.
  // Otherwise one watch of an event is kept, and only while it is not recorded again.
  void watch(wire::ObjectId id, WordSignal signal, bool waits);
  // The driver's event, for a command that may record it again. Each waiting watch first gets a
  // private event, which stands for the record that it waits for. A private event takes a stream,
  // and streams that wait may hold others up, because a device has few queues.
  CUresult find_event(wire::ObjectId id, CUevent* event);
  // The client's event is about to be recorded, or was destroyed: nobody waits for its earlier
  // record. While a capture has the event, to query it would end the capture.
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
  void enqueue(const SessionStream& stream, Pending pending);
  void finish(Pending& pending, uint64_t key, CUresult result);
  void finish(Watch& watch, CUresult result);
  void move_watches(wire::ObjectId id);
  void move(Watch& watch);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  WorkCount& work_;
  Answers& answers_;
  DeviceOutput& output_;
  PoolFrees& pool_frees_;
  // By SessionStream::key, from a stream's first completion to its end. Programs wait for streams
  // too often to make a queue each time.
  std::unordered_map<uint64_t, std::unique_ptr<Queue>> queues_;
  std::vector<Queue*> active_;  // those that are not empty, or are being emptied
  std::vector<Watch> watches_;
};

}  // namespace rcuda::server
