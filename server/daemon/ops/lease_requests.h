// LeaseRequests: carries out requests about leases of devices (docs/leases.md), and ends leases
// whose time is over. Operators take, extend and revoke leases. Other users may only list the
// leases that are for them.
//
// Each change is written to the file of leases, the log and the audit, and the clients that waited
// for the change may start. The sessions of a lease end with the lease.
//
// Threads: the daemon's only thread. Blocking: for the file of leases. Errors: those of Leases;
// kDenied if the request needs an operator; those of the file.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "common/messages/lease_messages.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/audit.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/identity/authenticator.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

class LeaseRequests {
 public:
  // The arguments outlive this object.
  LeaseRequests(const Settings& settings, Admission& admission, Authenticator& authenticator,
                Audit& audit, WorkerPool& pool);

  // Reads the leases of the server's last run.
  Status open();

  // Checks the client's proof that it has the key of its lease (Leases::unlock()), and clears the
  // proof in `hello`. On success, `identity` names the lease and its job. If the Hello names no
  // lease: fails if the setting require_lease is on, else leaves `identity` unchanged.
  Status unlock(wire::Hello* hello, const tls::Key& binding, Identity* identity) const;

  // Checks a request, and that `who` may make it.
  Result<wire::LeaseRequest> check(const std::vector<std::byte>& body, const Identity& who) const;
  // Returns the answer. Returns nothing while the lease's user is being looked up, or while no
  // worker has reported the devices yet.
  Result<std::optional<wire::LeaseAnswer>> answer(const wire::LeaseRequest& request,
                                                  const Identity& who);

  // Adds the devices that have leases, and the leases' users that the viewer may know.
  void report(wire::ServerStatus* status, const Viewer& to) const;

  // Ends the leases whose time is over, and their sessions.
  void expire();

 private:
  Result<bool> take(const wire::LeaseRequest& request, const Identity& who,
                    wire::LeaseAnswer* answer);
  // Extends or revokes a lease. After an error, nothing has changed.
  Status change(const wire::LeaseRequest& request, const Identity& who, wire::LeaseAnswer* answer);
  void list(const wire::LeaseRequest& request, const Identity& who,
            wire::LeaseAnswer* answer) const;
  void note(const char* what, const Lease& lease, const std::optional<Identity>& by);
  // Writes the file of leases.
  Status save(const Leases& leases) const;

  const Settings& settings_;
  Admission& admission_;
  Authenticator& authenticator_;
  Audit& audit_;
  WorkerPool& pool_;
  const std::string path_;  // empty: leases are not saved
};

}  // namespace rcuda::server
