// Reload: reads the settings again while the server runs, after SIGHUP or for an operator.
//
// A reload first reads and checks all settings and the files that they name. If one of these is not
// usable, nothing changes, and one line of the log says why. Otherwise the settings of kReloaded
// and the table `limits` take effect, and the audit file is opened again, so that a file that was
// moved away gets no more lines. Other settings that have changed keep their values until the
// server restarts. The log names the changed settings of both kinds.
//
// Sessions and their workers go on as before: with the limits that they were granted, and with the
// log level of their start. Idle workers are replaced if the log level changes.
//
// Threads: the daemon's only thread. Blocking: run(), for files, the user database and, if the
// server's binary was replaced, check_successor(). Errors: kInvalidArgument with the file and line
// for an unusable setting; otherwise the system's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/audit.h"
#include "server/daemon/ops/service_manager.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/identity/authenticator.h"
#include "server/identity/identity.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

// The keys of the settings that a reload changes.
inline constexpr std::string_view kReloaded[] = {
    "users",      "operators",     "require_lease", "certificate", "client_authorities",
    "audit",      "drain_timeout", "max_sessions",  "park_after",  "park_memory",
    "stay_awake", "preempt",       "preempt_wait",  "log"};

bool is_reloaded(std::string_view key);

// The keys of settings whose values differ.
struct SettingChanges {
  std::vector<std::string> reloaded;
  std::vector<std::string> need_restart;
};
SettingChanges compare(const Settings& now, const Settings& next);

class Reload {
 public:
  // Loads new settings from where the server loaded its settings at its start.
  using Load = std::function<Status(Settings* settings)>;

  // The references must outlive this object. run() calls `applied` when the new settings are in
  // effect, and adds the text that `applied` returns to its own result.
  Reload(Settings& settings, Load load, Admission& admission, Authenticator& authenticator,
         Audit& audit, WorkerPool& pool, ServiceManager& service_manager,
         std::function<std::string()> applied)
      : settings_(settings),
        load_(std::move(load)),
        admission_(admission),
        authenticator_(authenticator),
        audit_(audit),
        pool_(pool),
        service_manager_(service_manager),
        applied_(std::move(applied)) {}

  // `by`: the operator; none for a signal. Returns one line that says what has changed.
  Result<std::string> run(const std::optional<Identity>& by);

 private:
  struct Next;
  Status read(Next* next);
  void apply(Next& next);
  Result<std::string> run_now(const std::optional<Identity>& by);

  Settings& settings_;
  const Load load_;
  Admission& admission_;
  Authenticator& authenticator_;
  Audit& audit_;
  WorkerPool& pool_;
  ServiceManager& service_manager_;
  const std::function<std::string()> applied_;
};

}  // namespace rcuda::server
