// The exchange of measured legs between the two ends.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "p2p/engine/peer.h"

namespace rcuda::p2p {
namespace {

bool text_ends(std::span<const char> text) {
  return std::find(text.begin(), text.end(), '\0') != text.end();
}

}  // namespace

Status Peer::send_leg(const LegKey& key, const LegModel& leg) {
  if (leg.knots().size() > kMaxLegKnots) return {};
  LegMessage message;
  message.knot_count = static_cast<uint32_t>(leg.knots().size());
  put_text(message.leg, key.kind);
  put_text(message.gpu, key.gpu);
  put_text(message.peer, key.peer);
  message.delay_us = leg.delay_us(0);
  message.disturbed = environment_.measured(key) ? 0 : 1;
  for (size_t i = 0; i < leg.knots().size(); ++i) {
    message.bytes[i] = leg.knots()[i].bytes;
    message.us[i] = leg.knots()[i].us;
  }
  return link_->mailbox.send(message);
}

// Sends the legs that the peer's planner needs from this side: those of its devices, and of mapped
// copies that it pulls.
Status Peer::send_legs() {
  const auto own = [&](const std::string& gpu) {
    return std::any_of(environment_.devices.begin(), environment_.devices.end(),
                       [&](const EngineDevice& device) { return device.uuid == gpu; });
  };
  for (const auto& [key, leg] : environment_.measurements.legs()) {
    if (!key.nic.empty()) continue;
    const bool of_device = own(key.gpu) && key.peer.empty();
    const bool pulled = key.kind == "ipc" && own(key.peer);
    if (of_device || pulled) RCUDA_RETURN_IF_ERROR(send_leg(key, leg));
  }
  return {};
}

Status Peer::on_leg(const LegMessage& message) {
  if (!text_ends(message.leg) || !text_ends(message.gpu) || !text_ends(message.peer) ||
      message.knot_count > kMaxLegKnots || message.disturbed > 1) {
    return {Code::kProtocol, "a Leg that cannot be"};
  }
  const std::string kind = get_text(message.leg);
  const LegKey key{kind, get_text(message.gpu), "", get_text(message.peer)};
  const std::string& owner = kind == "ipc" ? key.peer : key.gpu;
  const auto devices = std::span(link_->offer.devices).first(link_->offer.device_count);
  const bool theirs = std::any_of(devices.begin(), devices.end(), [&](const DeviceOffer& device) {
    return get_text(device.uuid) == owner;
  });
  const bool known =
      kind == "copy_out" || kind == "copy_in" || kind == "device_copy" || kind == "ipc";
  if (!theirs || !known) return {Code::kProtocol, "a Leg that is not the peer's to measure"};
  std::vector<LegModel::Knot> knots;
  for (uint32_t i = 0; i < message.knot_count; ++i) {
    knots.push_back({message.bytes[i], message.us[i]});
  }
  Result<LegModel> leg = LegModel::from_knots(std::move(knots), message.delay_us);
  if (!leg) return {Code::kProtocol, leg.status().context()};
  const LegModel* const before = environment_.measurements.find(key);
  if (before == nullptr || *before != *leg || !environment_.measured(key)) {
    environment_.keep(key, *std::move(leg), message.disturbed != 0);
  }
  link_->refresh_models();
  return {};
}

}  // namespace rcuda::p2p
