// Audit: one line of JSON for each session that has ended, for each client that was refused and for
// each change of a lease: who, from where, by which method, what, how long, and how it ended.
//
//   {"time":"2026-01-31T12:00:00Z","event":"session","user":"ada","uid":1000,"method":"token", ...}
//   {"time":"2026-01-31T12:00:05Z","event":"refused","from":"10.0.0.7:51312","why":"..."}
//   {"time":"2026-01-31T12:00:09Z","event":"lease","what":"taken","lease":"1a2b3c4d", ...}
//
// Texts that come from clients are escaped, so that a line is one line. What the client says of
// itself is in "claims". "quota" has what the session was granted, and nothing that is unlimited.
// The bytes are the worker's own count.
// Threads: the daemon's only thread. Blocking: as write(2) to the file. Errors: open() fails if the
// file cannot be written; a later failure is logged once and ends nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"
#include "server/daemon/identity.h"
#include "server/daemon/leases.h"
#include "server/quota/limits.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {

struct EndedSession {
  Identity identity;
  wire::ServerStatus::Session session;
  std::vector<Allowance> allowances;
  SessionLimits limits;
};

class Audit {
 public:
  // `path`: a file, to which lines are appended; "-" for stderr, which systemd puts into the journal;
  // empty: no audit.
  Status open(const std::string& path);

  void refused(const std::string& from, const std::optional<Identity>& identity,
               std::string_view why);
  // `totals`: nothing if the worker ended without a word; then `outcome` says how.
  void ended(const EndedSession& ended, const std::optional<SessionTotals>& totals,
             std::string_view outcome);
  // `what`: "taken", "extended", "revoked" or "expired". `by`: the operator; none: the server.
  void lease(std::string_view what, const Lease& lease, const std::optional<Identity>& by);

 private:
  void write(std::string line);

  UniqueFd file_;
  bool failed_ = false;  // and it is logged
};

}  // namespace rcuda::server
