// LostClient: a session that can make room for a waiting client. Its own client is disconnected and
// may come back (RCUDA_RECONNECT), or the session is already ending, for any reason.
//
// A disconnected session keeps its devices and its places in the budgets until a client waits for
// them. Then the daemon ends the session: a session of the waiting client's user before others, and
// the session that has been disconnected for the longest time first. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace rcuda::server {

struct LostClient {
  // A session is spared for this time after its loss. A client needs 10 s to notice a loss that
  // only the server has seen, and up to 6 s for its next attempt when its network is back. The
  // remaining time is for the outage itself.
  static constexpr std::chrono::seconds kSpared{30};
  // A session is also spared for this time after an attempt of its client to connect again. The
  // session goes on only when the worker has all sockets of the client, and the client may still be
  // connecting some of them.
  static constexpr std::chrono::seconds kSparedAfterAttempt{10};

  uint32_t worker = 0;  // the process of the session's worker
  std::chrono::seconds lost_for{0};
  bool ends = false;  // the session is over or must end, but still holds its places
  // The time since the client's last attempt to connect.
  std::chrono::seconds quiet_for = std::chrono::seconds::max();

  bool may_end() const { return !ends && lost_for >= kSpared && quiet_for >= kSparedAfterAttempt; }
  // A clause that says when a waiting client can end the session; empty: now.
  std::string when() const;
  // The command that ends the session.
  std::string command() const { return "rcuda-smi end SERVER " + std::to_string(worker); }
};

// The clause for a refusal by `what`, such as "this limit". `own`: the session belongs to the
// client's user. `waited`: the client has waited, so the clause does not advise it to wait.
std::string hint_of(const LostClient& lost, bool own, bool waited, const std::string& what);

}  // namespace rcuda::server
