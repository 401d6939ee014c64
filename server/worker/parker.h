// Parker: the worker's side of parking. Passes the daemon's steps to the executor thread, and the
// worker's answers to the daemon.
//
//   daemon                           worker (session_park.cpp)
//   kRest     come to rest           kAtRest, or kBusy or kCannot with the reason: goes on
//   kSuspend  all that are parked with it rest; its NCCL
//             must release its memory           kSuspended, or kCannot with the reason
//   kParked   its GPU memory is away; its driver must not be called
//   kStay     it could not be parked; it goes on
//   kPlace    it will be awake on other GPUs, and
//             books its memory there              kPlaced
//   kPlaceBack  the driver could not do that
//   kWake     a user wants it back   kWakeWanted, if it is parked
//   kAwake    its GPU memory is back; it goes on
//   kMove     move its GPU memory      kMoved, or kNotMoved if the memory is where it was. After
//             itself                   kNotMoved, a worker at rest goes on, and a parked worker
//                                      waits for the next kMove
//
// The driver's way is kParked and kAwake. The worker's own way is kMove (server/executor/movable):
// a worker at rest moves the memory to the host, and a parked worker moves it back.
//
// With oversubscribe, a worker also asks (docs/parking.md#oversubscription), at any time:
//
//   kRoomWanted  the device, the bytes that the driver has refused, and the free bytes. The daemon
//                answers kRoom with 1 when it has made room, or with 0 if it cannot
//   kRoomUsed    after such an answer: the session has the memory, or gives up
//   kRoomAsked   the device and the free bytes. The daemon answers kRoom with the bytes that it
//                could make free besides
//
// A step that does not fit the session's state is ignored, because steps and answers may cross.
//
// Threads: receive() and any() from any thread, the rest on the executor thread. Blocking: none.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "server/protocol/worker_messages.h"

namespace rcuda::server {

class Parker {
 public:
  // `answer` sends to the daemon.
  explicit Parker(std::function<void(const ParkAnswer&)> answer) : answer_(std::move(answer)) {}

  // The caller must wake the executor thread afterwards.
  void receive(ParkStep step) {
    MutexLock lock(mutex_);
    steps_.push_back(std::move(step));
    any_.store(true);
  }
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::optional<ParkStep> take() {
    MutexLock lock(mutex_);
    if (steps_.empty()) return std::nullopt;
    ParkStep step = std::move(steps_.front());
    steps_.pop_front();
    any_.store(!steps_.empty());
    return step;
  }
  // The number of the kRoom that has come, out of its turn: the executor thread waits for it in the
  // middle of a command.
  std::optional<uint64_t> take_room() {
    MutexLock lock(mutex_);
    const auto is_room = [](const ParkStep& step) { return step.what == ParkStep::What::kRoom; };
    const auto found = std::ranges::find_if(steps_, is_room);
    if (found == steps_.end()) return std::nullopt;
    const uint64_t room = found->keep;
    steps_.erase(found);
    any_.store(!steps_.empty());
    return room;
  }
  void answer(ParkAnswer::What what, std::string why = {}, std::vector<uint64_t> bytes = {}) const {
    answer_({what, std::move(why), std::move(bytes)});
  }

 private:
  const std::function<void(const ParkAnswer&)> answer_;
  std::atomic<bool> any_{false};
  Mutex mutex_;
  std::deque<ParkStep> steps_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::server
