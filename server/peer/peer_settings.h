// PeerSettings: a session's settings for connections to its other workers. Made once, from the
// server's settings and the client's Hello, and passed on unchanged.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/transport/link.h"
#include "p2p/planner/planner.h"

namespace rcuda::server {

struct PeerSettings {
  std::array<uint8_t, 16> session{};  // Hello::session
  p2p::PlannerOptions planner;
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::nanoseconds spin{0};  // EngineOptions::spin
  // Where what copies take is kept; none: the file of the process's user.
  std::optional<std::string> measurements_path;
  // peer_timeout, bulk_streams and near_pci, of every Link of the session, the client's included.
  transport::LinkOptions link;
};

}  // namespace rcuda::server
