// Waits until an engine has opened the connection with a peer.
#pragma once

#include <chrono>
#include <thread>

#include "p2p/engine/engine.h"

namespace rcuda::testing {

// Returns false if the peer is lost, or after the timeout. Does not change the engine: requests the
// plan for a device that does not exist. The engine reports the device as invalid only if the peer
// is open.
inline bool wait_until_open(p2p::Engine& engine, p2p::PeerId peer,
                            std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const Code code = engine.plan(peer, -1, -1, 0).status().code();
    if (code != Code::kUnavailable) return code == Code::kInvalidArgument;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace rcuda::testing
