// Lanes: the engine's view of the devices' copy queues. Asks each busy lane once per round how far
// it got, bounds how much is queued so that a small copy does not wait behind a large one's whole
// window, and turns a lane's error into the error of whatever was queued on it.
// Owned by the engine's thread; nothing blocks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "p2p/device_ops.h"

namespace rcuda::p2p {

class Lanes {
 public:
  explicit Lanes(DeviceOps& ops) : ops_(ops), lanes_(ops.devices().size() * kLaneCount) {}

  // Once per round: true when some lane got further.
  bool refresh();
  // Whether something is queued anywhere: only asking again will tell when it ends.
  bool busy() const;

  // A moment: passed() once everything that was queued by then has ended, in whatever way.
  using Moment = std::vector<Ticket>;
  Moment now() const;
  bool passed(const Moment& moment) const;

  // Whether another chunk should be queued: two chunks at least, further ones while they are small.
  bool has_room(int device, Lane lane, uint64_t bytes) const;
  // Where a box is refused, those before it may be under way: the copy ends with the refusal when
  // they have ended, and its memory is in use until then. An error: nothing is under way.
  Result<Ticket> copy(int device, Lane lane, std::span<const CopyBox> boxes, uint64_t bytes);
  // As of the last refresh(). An error means the copy never ends well; nobody asks again then.
  Result<bool> finished(int device, Lane lane, Ticket ticket);

 private:
  struct Issued {
    Ticket ticket;
    uint64_t bytes;
    Status refused;  // how it ends, if that is not ok
  };
  struct State {
    std::deque<Issued> issued;
    uint64_t bytes = 0;
    Ticket finished = 0;
    Status failure;
    std::map<Ticket, Status> refused;  // of what is finished, and not yet told
    Ticket failed_up_to = 0;           // tickets in (finished, failed_up_to] ended with `failure`
  };
  State& state(int device, Lane lane) {
    return lanes_[static_cast<size_t>(device) * kLaneCount + static_cast<size_t>(lane)];
  }
  const State& state(int device, Lane lane) const {
    return lanes_[static_cast<size_t>(device) * kLaneCount + static_cast<size_t>(lane)];
  }

  DeviceOps& ops_;
  std::vector<State> lanes_;
};

}  // namespace rcuda::p2p
