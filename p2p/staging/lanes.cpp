#include "p2p/staging/lanes.h"

#include <algorithm>
#include <utility>

namespace rcuda::p2p {
namespace {

constexpr size_t kChunksQueued = 2;
constexpr uint64_t kSmallBytesQueued = uint64_t{2} << 20;

}  // namespace

bool Lanes::refresh() {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    State& lane = lanes_[i];
    if (lane.issued.empty()) continue;
    const Result<Ticket> finished =
        ops_.finished(static_cast<int>(i / kLaneCount), static_cast<Lane>(i % kLaneCount));
    if (!finished) {
      // Copies after a failed copy have not run, or ran on a broken context. So all of them count
      // as failed.
      lane.failure = finished.status();
      lane.failed_up_to = lane.issued.back().ticket;
      lane.issued.clear();
      lane.bytes = 0;
      moved = true;
      continue;
    }
    while (!lane.issued.empty() && lane.issued.front().ticket <= *finished) {
      Issued& oldest = lane.issued.front();
      lane.finished = oldest.ticket;
      if (!oldest.refused.ok()) lane.refused.emplace(oldest.ticket, std::move(oldest.refused));
      lane.bytes -= lane.issued.front().bytes;
      lane.issued.pop_front();
      moved = true;
    }
  }
  return moved;
}

bool Lanes::busy() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const State& lane) { return !lane.issued.empty(); });
}

Lanes::Moment Lanes::now() const {
  Moment moment;
  for (const State& lane : lanes_)
    moment.push_back(lane.issued.empty() ? 0 : lane.issued.back().ticket);
  return moment;
}

bool Lanes::passed(const Moment& moment) const {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i].issued.empty() && lanes_[i].issued.front().ticket <= moment[i]) return false;
  }
  return true;
}

bool Lanes::has_room(int device, Lane lane, uint64_t bytes) const {
  const State& queue = state(device, lane);
  return queue.issued.size() < kChunksQueued || queue.bytes + bytes <= kSmallBytesQueued;
}

Result<Ticket> Lanes::copy(int device, Lane lane, std::span<const CopyBox> boxes, uint64_t bytes) {
  Result<Ticket> ticket = ops_.copy(device, lane, boxes);
  Status refused;
  if (!ticket) {
    refused = ticket.status();
    ticket = ops_.copy(device, lane, {});
    if (!ticket) return refused;
  }
  State& queue = state(device, lane);
  queue.issued.push_back({*ticket, bytes, std::move(refused)});
  queue.bytes += bytes;
  return ticket;
}

Result<bool> Lanes::finished(int device, Lane lane, Ticket ticket) {
  State& queue = state(device, lane);
  if (auto ended = queue.refused.extract(ticket)) return std::move(ended.mapped());
  if (ticket <= queue.finished) return true;
  if (ticket <= queue.failed_up_to) return queue.failure;
  return false;
}

}  // namespace rcuda::p2p
