#include "server/executor/peers/peer_waits.h"

#include <cstring>

#include "api/traits.h"

namespace rcuda::server {

bool PeerWaits::may_run(std::span<const std::byte> frame) {
  // The number of commands that may run while a stream is held. A driver's queue holds a thousand.
  constexpr int kMostBehind = 256;
  if (!peers_.active()) [[likely]]
    return true;
  const p2p::Pause paused = peers_.paused();
  if (paused == p2p::Pause::kWork) return false;
  wire::CommandHeader header;
  if (frame.size() < sizeof header) return true;  // malformed: the session loop refuses it
  std::memcpy(&header, frame.data(), sizeof header);
  const auto body = frame.subspan(sizeof header);
  const api::CommandTraits& traits = api::traits_of(header.opcode);
  bool holds = false;
  if (traits.holds_stream) {
    if (body.size() < traits.body_bytes) return true;
    const p2p::PeerId link = *api::member(body, traits.link);
    holds = api::holds_stream(traits, body) && peers_.knows(link);
    const bool others_wait =
        device_waits_.any() || paused != p2p::Pause::kNone || peers_.wants(p2p::Pause::kHolds);
    if (holds && (others_wait || !peers_.settled(link))) return false;
  }
  crowded_ = false;
  if (!peers_.holding()) {
    behind_ = 0;
    if (!holds) return true;
  }
  const api::WhileHeld effect = effect_of(traits, header, body);
  if (behind_ >= kMostBehind || effect == api::WhileHeld::kWaits) return false;
  if (effect == api::WhileHeld::kQueues && !has_room(header.context)) {
    crowded_ = true;
    return false;
  }
  ++behind_;
  return true;
}

// Whether one more stream may have work in progress. The command's own stream counts as one more,
// even if it already has work.
bool PeerWaits::has_room(wire::ObjectId id) {
  const size_t most = most_streams_;
  ContextState* context = most > 0 ? objects_.find_context(id) : nullptr;
  if (!context) return true;
  const size_t waiting =
      completions_.waiting_streams() + static_cast<size_t>(peers_.waiting_streams());
  return waiting + idle_.count_busy_streams(context->device, false) < most ||
         waiting + idle_.count_busy_streams(context->device, true) < most;
}

// This thread also queues the program's work. So none is queued between the query and the start of
// a kWork pause; may_run() refuses it until the pause ends.
bool PeerWaits::begin_pause() {
  if (peers_.holding()) return false;
  if (peers_.wants(p2p::Pause::kWork) && idle_.known_idle()) {
    return peers_.begin_pause(p2p::Pause::kWork);
  }
  return peers_.wants(p2p::Pause::kHolds) && peers_.begin_pause(p2p::Pause::kHolds);
}

bool PeerWaits::run_freed() { return begin_pause() || device_waits_.run_freed(); }

api::WhileHeld PeerWaits::effect_of(const api::CommandTraits& traits,
                                    const wire::CommandHeader& header,
                                    std::span<const std::byte> body) {
  using api::WhileHeld;
  if (traits.while_held != WhileHeld::kAsks) return traits.while_held;
  return may_wait_(header, body) ? WhileHeld::kWaits : WhileHeld::kQueues;
}

}  // namespace rcuda::server
