// The exchange of measured legs between the two ends.
#include <utility>
#include <vector>

#include "p2p/engine/peer.h"

namespace rcuda::p2p {

Status Peer::send_leg(ReportedLeg which, int device, int peer_device, const LegModel& leg) {
  if (leg.empty() || leg.knots().size() > kMaxLegKnots) return {};
  LegMessage message;
  message.leg = which;
  message.device = static_cast<uint32_t>(device);
  message.peer_device = static_cast<uint32_t>(peer_device);
  message.knot_count = static_cast<uint32_t>(leg.knots().size());
  message.delay_us = leg.delay_us(0);
  for (size_t i = 0; i < leg.knots().size(); ++i) {
    message.bytes[i] = leg.knots()[i].bytes;
    message.us[i] = leg.knots()[i].us;
  }
  return link_->mailbox.send(message);
}

// Sends the legs that the peer's planner needs from this side: copies into and within the devices,
// and mapped copies that this side pulls.
Status Peer::send_legs() {
  for (size_t i = 0; i < environment_.devices.size() && i < kMaxDevices; ++i) {
    const int device = static_cast<int>(i);
    const DeviceLegs& legs = environment_.legs[i];
    RCUDA_RETURN_IF_ERROR(send_leg(ReportedLeg::kCopyIn, device, 0, legs.copy_in));
    RCUDA_RETURN_IF_ERROR(send_leg(ReportedLeg::kWithin, device, 0, legs.within));
  }
  for (const auto& [devices, pair] : link_->pairs) {
    RCUDA_RETURN_IF_ERROR(
        send_leg(ReportedLeg::kIpc, devices.first, devices.second, pair.pull_leg));
  }
  return {};
}

Status Peer::on_leg(const LegMessage& message) {
  if (message.knot_count > kMaxLegKnots || message.device >= link_->offer.device_count ||
      message.peer_device >= environment_.devices.size()) {
    return peer_violation(
        "the peer worker sent an invalid Leg: " + std::to_string(message.knot_count) +
        " knots (at most " + std::to_string(kMaxLegKnots) + ") for device " +
        std::to_string(message.device) + " of the peer and device " +
        std::to_string(message.peer_device) + " of this worker");
  }
  std::vector<LegModel::Knot> knots;
  for (uint32_t i = 0; i < message.knot_count; ++i) {
    knots.push_back({message.bytes[i], message.us[i], message.delay_us});
  }
  Result<LegModel> leg = LegModel::from_knots(std::move(knots));
  if (!leg) {
    return peer_violation("the peer worker sent an invalid Leg: " + leg.status().context());
  }
  const int own = static_cast<int>(message.peer_device);
  switch (message.leg) {
    case ReportedLeg::kCopyIn:
      link_->peer_legs[message.device].copy_in = *std::move(leg);
      break;
    case ReportedLeg::kWithin:
      link_->peer_legs[message.device].within = *std::move(leg);
      break;
    case ReportedLeg::kIpc:
      link_->pair(own, static_cast<int>(message.device)).ipc_leg = *std::move(leg);
      break;
    default:
      return peer_violation("the peer worker sent a Leg of unknown kind " +
                            std::to_string(static_cast<uint32_t>(message.leg)));
  }
  link_->refresh_models();
  return {};
}

}  // namespace rcuda::p2p
