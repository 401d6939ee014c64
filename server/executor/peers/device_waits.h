// DeviceWaits: delays calls in which a driver waits for the device (unloading code, freeing memory,
// ...) until the work of the call's context is done. The executor thread must not wait in the
// driver: it serves the whole session. While a stream is held for a peer worker, the driver would
// also block the engine, which has to end the copy that holds the stream.
//
// Executor thread only. Nothing blocks, with one exception: if the program's threads never stop
// queueing work, the call is made after some attempts although the device is busy.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/wire/protocol.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/peer_hub.h"
#include "server/executor/streams/idle.h"
#include "server/executor/streams/jobs.h"

namespace rcuda::server {

class DeviceWaits {
 public:
  using Action = std::function<void()>;

  // All outlive this object.
  DeviceWaits(SessionObjects& objects, IdleCheck& idle, Jobs& jobs, const PeerHub& peers)
      : objects_(objects), idle_(idle), jobs_(jobs), peers_(peers) {}

  struct Call {
    wire::ObjectId context = 0;
    // Whether the driver waits for the work in the context. If not, the call is delayed only until
    // no stream is held.
    bool waits_for_work = true;
    // If set: called when the work is done, before `run`. It must call its argument, at once or
    // later: `run` waits for that call.
    std::function<void(Action)> before;
    // Makes the call. Runs between two commands, never in the handler of another command, because
    // that command's context and reply must not change. `context` need not be current, and may have
    // ended.
    Action run;
  };
  void postpone(Call call) { postpone(std::move(call), 0); }
  // Some calls of the driver wait for this context's work. Returns whether such a call can be made
  // now: the work is known to be done, no stream is held, and no earlier call waits for the end of
  // a hold.
  bool may_call(ContextState& context);

  // Whether calls wait until no stream is held. Until these calls are made, CommandScheduler lets
  // no further stream be held.
  bool any() const { return !when_free_.empty(); }
  // Makes the calls that wait until no stream is held. To be called between two commands. Returns
  // whether it did anything.
  bool run_freed();

 private:
  // `attempts`: how often the context had new work after the wait.
  void postpone(Call call, int attempts);
  void make(Call call, int attempts);
  // Whether the context is valid and has work that is not known to be done.
  bool is_busy(wire::ObjectId context);

  SessionObjects& objects_;
  IdleCheck& idle_;
  Jobs& jobs_;
  const PeerHub& peers_;
  std::vector<Action> when_free_;
};

}  // namespace rcuda::server
