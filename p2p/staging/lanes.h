// Lanes: the engine's view of the devices' copy queues (DeviceOps). It polls each busy lane once
// per round. It limits the queued work, so that a small copy does not wait for all chunks in flight
// of a large copy. An error of a lane becomes the error of everything queued on it. Owned by the
// engine thread; nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "p2p/api/device_ops.h"

namespace rcuda::p2p {

class Lanes {
 public:
  explicit Lanes(DeviceOps& ops) : ops_(ops), lanes_(ops.devices().size() * kLaneCount) {}

  // Polls the busy lanes; called once per round. Returns true if a lane has made progress.
  bool refresh();
  // Whether any lane has queued work. Only polling shows when the work ends.
  bool busy() const;

  // A point in time. passed() returns true once everything that was queued before it has ended,
  // with or without an error.
  using Moment = std::vector<Ticket>;
  Moment now() const;
  bool passed(const Moment& moment) const;

  // Whether another chunk of `bytes` should be queued on the lane. Two chunks may always be queued,
  // more only while they are small (kSmallBytesQueued in all).
  bool has_room(int device, Lane lane, uint64_t bytes) const;
  // Queues copies. If the driver refuses a box, copy() still returns a ticket: finished() reports
  // the refusal when the boxes before it have ended, because until then the memory is in use.
  // Returns an error only if the driver also refuses to record the end of these boxes.
  Result<Ticket> copy(int device, Lane lane, std::span<const CopyBox> boxes, uint64_t bytes);
  // Whether the copies of this ticket had ended at the last refresh(). An error is final: after it,
  // the caller must not query this ticket again.
  Result<bool> finished(int device, Lane lane, Ticket ticket);

 private:
  struct Issued {
    Ticket ticket;
    uint64_t bytes;
    Status refused;  // if the driver refused one of its boxes: that error
  };
  struct State {
    std::deque<Issued> issued;
    uint64_t bytes = 0;
    Ticket finished = 0;
    Status failure;
    std::map<Ticket, Status> refused;  // errors of finished tickets that are not yet reported
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
