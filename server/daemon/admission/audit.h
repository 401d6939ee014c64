// Audit: one JSON line for each session that begins, each session that has ended, each client that
// was refused, each change of a lease, and each action of an operator. The line of a session that
// has ended has the user, the origin, the method, the devices, the duration and the outcome. A
// session with a "begin" line but no "session" line still runs, or was running when the daemon was
// killed.
//
//   {"time":"2026-01-31T11:59:48Z","event":"begin","user":"ada","worker":4711, ...}
//   {"time":"2026-01-31T12:00:00Z","event":"session","user":"ada","uid":1000,"method":"token", ...}
//   {"time":"2026-01-31T12:00:05Z","event":"refused","from":"10.0.0.7:51312","why":"..."}
//   {"time":"2026-01-31T12:00:09Z","event":"lease","what":"taken","lease":"1a2b3c4d", ...}
//   {"time":"2026-01-31T12:00:11Z","event":"control","what":"drain","user":"root", ...}
//
// Texts that come from clients are escaped, so that each entry stays on one line. "claims" has the
// client's unverified data about itself. "quota" has the limits of the session and leaves out
// unlimited resources. The counts of a session's work come from its worker.
//
// Threads: the daemon's only thread. Blocking: as write(2) to the file. Errors: open() fails if the
// file cannot be written. A later failure ends no session. Of several failures in a row, only the
// first is logged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/server_status.h"
#include "server/daemon/admission/leases.h"
#include "server/identity/identity.h"
#include "server/protocol/worker_messages.h"
#include "server/quota/limits.h"

namespace rcuda::server {

struct AuditedSession {
  Identity identity;
  wire::ServerStatus::Session session;
  std::vector<Allowance> allowances;
  SessionLimits limits;
};

class Audit {
 public:
  // `path`: a file, to which lines are appended; "-" for stderr, which systemd puts into the
  // journal; empty: no audit. A further call replaces the file, unless it fails.
  Status open(const std::string& path);
  // Whether open() will succeed. Makes no file.
  static Status check(const std::string& path);

  void refused(const std::string& from, const std::optional<Identity>& identity,
               std::string_view why);
  void began(const AuditedSession& session);
  // `totals`: none if the worker ended without a report. Without `totals`, `outcome` says how the
  // worker ended, and the counts are those that the session's WorkPage had at the end.
  void ended(const AuditedSession& ended, const std::optional<SessionTotals>& totals,
             std::string_view outcome);
  // `what`: "taken", "extended", "revoked" or "expired". `by`: the operator; none: the server.
  void lease(std::string_view what, const Lease& lease, const std::optional<Identity>& by);
  // `what`: "end", "park", "wake", "move", "drain", "resume" or "reload". `by`: none for a signal,
  // or if the daemon parks or wakes a session by itself. `worker`: the worker of the session, for
  // "end", "park", "wake" and "move".
  void control(std::string_view what, const std::optional<Identity>& by,
               std::optional<uint32_t> worker);

 private:
  void write(std::string line);

  UniqueFd file_;
  bool failed_ = false;  // the last write has failed, and this is logged
};

}  // namespace rcuda::server
