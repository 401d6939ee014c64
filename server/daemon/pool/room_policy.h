// Chooses the sessions that are parked when another session needs room on its GPUs
// (docs/parking.md#oversubscription).
//
// Sessions of the lowest priority come first, and among these the session that has been idle
// longest. A session that woke lately stays, except if the session that needs the room has a higher
// priority. If the sessions that may be parked do not free enough, no session is chosen. Pure
// functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace rcuda::server {

using RoomTime = std::chrono::steady_clock::time_point;
using DeviceBytes = std::map<uint32_t, uint64_t>;  // by device

// A session, together with the sessions that would be parked with it.
struct RoomCandidate {
  uint32_t priority = 0;
  RoomTime used_at;      // when the session was last used
  RoomTime stays_until;  // until then the session stays, because it woke lately
  RoomTime busy_until;   // until then the session is not tried: it had work, or is being parked
  DeviceBytes bytes;     // the bytes that its park would free
};

struct RoomNeed {
  uint32_t priority = 0;
  DeviceBytes missing;
};

struct RoomChoice {
  std::vector<size_t> victims;  // indices of candidates
  // If there are no victims: the time at which to look for victims again. None: even all candidates
  // together do not suffice.
  std::optional<RoomTime> later;
};

RoomChoice choose_victims(const std::vector<RoomCandidate>& candidates, const RoomNeed& need,
                          RoomTime now);

}  // namespace rcuda::server
