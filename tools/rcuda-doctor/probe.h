// A probe transfer between two nodes: one node runs `rcuda-doctor --listen`, the other
// `rcuda-doctor --probe` with the name of the first node. For each medium that both nodes support,
// they make a Link as for a session, move bytes over it, and compare them.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "tools/rcuda-doctor/finding.h"

namespace rcuda::doctor {

inline constexpr uint16_t kProbePort = 8309;

// Serves probes one after another, until the process is killed or the listening socket fails.
Status serve_probes(const std::string& address, uint16_t port);

Findings probe(const std::string& host, uint16_t port);

}  // namespace rcuda::doctor
