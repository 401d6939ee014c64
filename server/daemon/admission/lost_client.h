// LostClient: the client of a session is disconnected, and may come back (RCUDA_RECONNECT).
//
// The session keeps its room until a client waits for it. Such a session is then the first that the
// daemon ends, the one with the longest loss before others. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace rcuda::server {

struct LostClient {
  // A session is spared for so long: a client whose network is back needs up to 6 s for its next
  // attempt.
  static constexpr std::chrono::seconds kSpared{10};

  uint32_t worker = 0;  // the process of the session's worker
  std::chrono::seconds lost_for{0};
  bool ends = false;    // it has been ended, and its room is not free yet
  std::string command;  // that ends it, such as "rcuda-smi end node1 1234"

  bool may_end() const { return !ends && lost_for >= kSpared; }
};

// The clause for a refusal of a client that lacks `what`, such as "a place". `own`: the session
// belongs to the client's user.
std::string hint_of(const LostClient& lost, bool own, const std::string& what);

}  // namespace rcuda::server
