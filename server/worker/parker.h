// Parker: the worker's side of parking. Passes the daemon's steps to the executor thread, and the
// worker's answers to the daemon.
//
//   daemon's step                          worker's answer (session_park.cpp)
//   kRest       the worker must come to rest
//                                          kAtRest; or kBusy or kCannot with the reason, and the
//                                          worker goes on
//   kSuspend    all workers of this park rest, and their NCCL must release its memory
//                                          kSuspended, or kCannot with the reason
//   kParked     the driver has moved the worker's GPU memory to the host. The worker must not call
//               the driver
//   kStay       the worker could not be parked, and goes on
//   kPlace      the worker will wake on other GPUs, and books its memory there
//                                          kPlaced
//   kPlaceBack  the driver could not restore the memory on these GPUs. The worker books its memory
//               on the old GPUs
//   kWake       a user wants to wake the session, a session that was parked together with it wakes,
//               or a session opens its exported memory
//                                          kWakeWanted, if it is parked and its quotas have room.
//                                          Also sent without kWake, if a command needs the GPU
//   kAwake      the worker's GPU memory is back, and the worker goes on
//   kMove       the worker must move its GPU memory itself
//                                          kMoved, or kNotMoved if the memory has not moved. After
//                                          kNotMoved, a worker at rest goes on, and a parked worker
//                                          waits for the next kMove
//
// The driver's way is kParked and kAwake. The worker's own way is kMove (server/executor/movable):
// a worker at rest moves the memory to the host, and a parked worker moves it back.
//
// With oversubscription (docs/parking.md#oversubscription), a worker also sends messages that
// answer no step:
//
//   kRoomWanted  the device, the bytes that the driver has refused, and the free bytes. The daemon
//                answers kRoom with 1 when it has made room, or with 0 if it cannot
//   kRoomUsed    after the last kRoom: the session has allocated the memory, or gives up
//   kRoomAsked   the device and the free bytes. The daemon answers kRoom with the further bytes
//                that it could make free
//
// A step that does not fit the session's state is ignored, because steps and answers may cross.
//
// Threads: receive() and any() from any thread, all other functions on the executor thread. Nothing
// blocks.
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
  // `answer` sends an answer to the daemon.
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
  // Removes the first kRoom from the steps, even if other steps precede it, and returns its number;
  // nullopt if no kRoom has come. The executor thread waits for the kRoom in the middle of a
  // command.
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
