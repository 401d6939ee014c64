// Leases: devices that are reserved for users and jobs for a time (docs/leases.md). A batch system
// takes a lease for a job, and revokes it when the job ends.
//
// An exclusive lease keeps all other sessions from its devices. A device with a shared lease may
// have further shared leases, and serves sessions without a lease as well. A session under a lease
// may use that lease's devices only. The key of a lease is its public id and a secret; a lease with
// a user is for that user only.
//
// Times are of the wall clock, because leases outlive the daemon (lease_file.h). Leases does not
// know the sessions: callers pass them to it. Threads: the daemon's only thread. Blocking: none.
// Errors name the lease or the devices and the remedy; none contains a secret. Only errors of
// take() and unlock() name other users: only operators see the errors of take(), and unlock() names
// only the user of the lease in question.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/messages/lease_messages.h"
#include "common/tls/proof.h"
#include "server/daemon/admission/lost_client.h"
#include "server/identity/identity.h"

namespace rcuda::server {

struct Lease {
  std::string id;  // public
  // Kept in plain text, not as a hash: another take() for the same job returns the same key.
  wire::LeaseSecret secret{};
  std::optional<uid_t> uid;  // of the user, if this machine knows that user
  std::string user;          // only this user may use the lease; empty: any client with the key
  std::string job;           // free text; unique unless empty
  std::vector<uint32_t> devices;  // in ascending order; the server's numbers
  bool exclusive = true;
  bool oversubscribes = false;  // the server may park its sessions to make room
  std::chrono::sys_seconds created;
  std::optional<std::chrono::sys_seconds> until;  // none: no end
  std::string creator;

  bool operator==(const Lease&) const = default;
};

// kNotFound for a device that the server does not offer. `offered`: empty if it is not known yet.
Status check_offered(const std::vector<uint32_t>& devices, const std::vector<uint32_t>& offered);
// "1a2b3c4d of slurm 4711 (user ada)"
std::string text_of(const Lease& lease);
// The lease in the form of an answer, without its sessions and their work.
wire::LeaseInfo info_of(const Lease& lease);
// Whether a client may use the lease if it has the key.
bool is_for(const Lease& lease, const Identity& who);

class Leases {
 public:
  using Time = std::chrono::sys_seconds;
  static constexpr size_t kMost = 1000;
  // The most leases in one LeaseAnswer. A client requests a longer list in parts.
  static constexpr size_t kMostInPage = 32;

  // A running session. `who` names its lease.
  struct Use {
    Identity who;
    std::vector<uint32_t> devices;
    std::optional<LostClient> lost{};  // set if the session may end to make room
  };
  struct Taken {
    Lease lease;
    bool is_new = false;  // false: the job had this lease before
  };

  // `wish`: a lease without the secret, and without an id if the server is to choose it. `count`:
  // the number of devices, if `wish` names none. `offered`: the server's devices; empty if they are
  // not known yet, and then `wish` must name devices.
  // Devices with the fewest leases and sessions are chosen first. An exclusive lease gets devices
  // without other leases and without sessions of other users; without a user, it gets devices
  // without any sessions. A job that has a lease of the same devices gets that lease again, with
  // its unchanged end. The same holds for a client that repeats a request with the id that it has
  // chosen. kUnavailable if devices are taken; the text names their holders.
  Result<Taken> take(Lease wish, uint32_t count, const std::vector<uint32_t>& offered,
                     const std::vector<Use>& uses, Time now);
  // The sessions with disconnected clients that must end before take() succeeds. Empty if none must
  // end, or if their ends would not suffice.
  std::vector<LostClient> in_the_way(const Lease& wish, uint32_t count,
                                     const std::vector<uint32_t>& offered,
                                     const std::vector<Use>& uses, Time now) const;
  // Changes the end of the lease with this id, or, if `id` is empty, of the lease with this job.
  // kNotFound if there is no such lease.
  Result<Lease> extend(const std::string& id, const std::string& job, std::optional<Time> until);
  // Returns the lease that it has removed; none if there was no such lease.
  std::optional<Lease> revoke(const std::string& id, const std::string& job);
  // Removes and returns the leases that have ended.
  std::vector<Lease> expire(Time now);
  std::optional<Time> next_end() const;

  // Checks that the client has the lease's secret: `proof` must be tls::lease_proof() of the secret
  // and of the connection's `binding`. kDenied if the lease is unknown, has ended, has another
  // secret, or is for another user. The user of the lease needs no proof (`proof` is zero), because
  // `who` is verified. kProtocol if the id is malformed. The time of the call does not depend on
  // the secret.
  Result<Lease> unlock(const std::string& id, const tls::Key& proof, const tls::Key& binding,
                       const Identity& who) const;
  // Whether a session may use these devices: under the lease `id`, or without a lease if `id` is
  // empty. kDenied if no wait would help; kUnavailable while one of the devices is leased
  // exclusively.
  Status check_devices(const std::vector<uint32_t>& devices, const std::string& id,
                       const std::vector<uint32_t>& offered) const;

  // The leases for which shown() returns true and whose id is above `after`, in the order of their
  // ids, kMostInPage at most.
  std::vector<const Lease*> page(const std::string& after,
                                 const std::function<bool(const Lease&)>& shown) const;

  const std::vector<Lease>& all() const { return leases_; }
  void restore(std::vector<Lease> leases) { leases_ = std::move(leases); }

 private:
  const Lease* find(const std::string& id, const std::string& job) const;
  const Lease* exclusive_of(uint32_t device) const;
  // Returns why `wish` cannot get the device; empty if it can.
  std::string obstacle(const Lease& wish, uint32_t device, const std::vector<Use>& uses) const;
  Result<std::vector<uint32_t>> choose(const Lease& wish, uint32_t count,
                                       const std::vector<uint32_t>& offered,
                                       const std::vector<Use>& uses) const;
  Result<Taken> again(const Lease& lease, const Lease& wish, uint32_t count) const;

  std::vector<Lease> leases_;  // the oldest first
};

}  // namespace rcuda::server
