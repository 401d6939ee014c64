// PeerSettings: a session's settings for connections to the program's other workers. Made once,
// from the server's settings and the client's Hello, and passed on unchanged.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "common/transport/link.h"
#include "p2p/plan/planner.h"

namespace rcuda::server {

// The reason why an encrypted session may not use a medium without encryption.
inline constexpr char kNoTrust[] =
    "the session is encrypted (RCUDA_SERVER_TRUSTED_FABRIC is not set)";

struct PeerSettings {
  std::array<uint8_t, 16> session{};  // Hello::session
  p2p::PlannerOptions planner;
  bool trusted_fabric = false;  // encrypted sessions may use media that do not encrypt
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds reconnect{0};  // how long a connection to another worker may be lost
  std::chrono::nanoseconds spin{0};        // EngineOptions::spin
  // bulk_streams and near_pci are those of every Link of the session, including the client's Link.
  transport::LinkOptions link;
};

}  // namespace rcuda::server
