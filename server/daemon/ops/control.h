// Control: carries out requests of operators: to end, park, wake or move sessions, to drain the
// server, and to reload its settings (reload.h). Other users may end, park and wake their own
// sessions. A server that drains takes no new sessions and stops when the last session has ended.
// An operator may resume it until then. An operator may also drain single GPUs: they get no new
// sessions. A signal drains the server too, for the drain timeout at most. No operator may resume
// it after the signal, because the sender of the signal waits for the end of the process.
//
// Threads: the daemon's only thread. Blocking: only a reload (reload.h). Errors: kDenied if the
// request needs an operator; kNotFound if the user has no such session.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/control_messages.h"
#include "common/messages/server_status.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/audit.h"
#include "server/daemon/ops/reload.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/identity/authenticator.h"
#include "server/identity/identity.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

class Control {
 public:
  using Clock = std::chrono::steady_clock;

  // The arguments outlive this object.
  Control(const Settings& settings, const Authenticator& authenticator, const Admission& admission,
          Audit& audit, WorkerPool& pool, Reload& reload)
      : settings_(settings),
        authenticator_(authenticator),
        admission_(admission),
        audit_(audit),
        pool_(pool),
        reload_(reload) {}

  // Executes a ControlRequest of `who`.
  Result<wire::ControlAnswer> handle(const std::vector<std::byte>& body, const Identity& who);
  bool draining() const { return draining_; }
  // Sets in `status` whether the server drains, and whether each device that `status` already lists
  // drains.
  void report(wire::ServerStatus* status) const;
  // For a successor (successor.h).
  void carry(CarriedState* state) const;
  void restore(const CarriedState& state);
  // The refusal of a client that requests a session while the server or one of its GPUs drains.
  Status check_draining(const std::vector<uint32_t>& devices) const;
  // SIGHUP reloads the settings. The first other signal drains the server if the drain timeout is
  // not 0. Returns false if the server is to stop.
  bool take_signal(int number);
  // Whether the server drains and is to stop now.
  bool may_stop() const;
  // Why the server stops, for the clients whose sessions end.
  std::string why_stopped() const;
  // Set after a signal has begun a drain: the time at which the server stops, even if sessions
  // still run.
  std::optional<Clock::time_point> drain_until() const { return drain_until_; }

 private:
  // Carries out a request about one session, which the session's user may make too.
  Status handle_session(const wire::ControlRequest& request, const Identity& who);
  Result<uint32_t> move_session(const wire::ControlRequest& request, const Identity& who);
  Status drain_gpu(uint32_t gpu, const Identity& by);
  Status resume(const Identity& by);
  // `by`: none for a signal.
  Status set_draining(bool draining, const std::optional<Identity>& by, const std::string& why);

  const Settings& settings_;
  const Authenticator& authenticator_;
  const Admission& admission_;
  Audit& audit_;
  WorkerPool& pool_;
  Reload& reload_;
  bool draining_ = false;
  std::set<uint32_t> drained_;  // GPUs that get no new sessions
  int signal_ = 0;              // the last signal to stop the server; 0: none
  std::optional<Clock::time_point> drain_until_;
};

}  // namespace rcuda::server
