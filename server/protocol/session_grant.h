// SessionGrant: the user and the limits of a session (WorkerPool::make_start()). It travels to the
// worker in a SessionStart, together with the client's Hello. The daemon has checked the devices of
// the Hello. For the user and the limits, a worker trusts only the grant, never the Hello. A plain
// value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "common/tls/connection.h"
#include "common/wire/exported_name.h"
#include "server/quota/limits.h"

namespace rcuda::server {

struct SessionGrant {
  // A packet with the longest Hello has no room for more groups.
  static constexpr size_t kMostGroups = 4096;

  std::string user;               // for logs
  std::string owner;              // the session may open exports of this owner
  uint16_t port = 0;              // the daemon's port, for the names of the session's exports
  wire::ExportNumber exporter{};  // the session's number in these names
  std::optional<uint32_t> uid;    // the user that a root worker becomes
  uint32_t gid = 0;               // set together with uid
  std::vector<uint32_t> groups;   // supplementary groups; set together with uid
  std::optional<tls::Key> key;    // each socket is encrypted with a key derived from this key
  // The client has proved to be the daemon's own user. This user may reach all that the worker
  // holds.
  bool own_user = false;
  // Limits of the worker's process, used if no cgroup limits the session; 0: no limit.
  uint64_t most_data_bytes = 0;
  uint64_t most_processes = 0;        // of the user, threads included
  std::vector<Allowance> allowances;  // each with a LedgerMemory message, in this order
  SessionLimits limits;
};

}  // namespace rcuda::server
