// Leases: which devices are lent to whom, for how long (docs/leases.md). A batch system takes a
// lease for a job and gives it back when the job ends.
//
// An exclusive lease keeps all other sessions from its devices. A device with a shared lease may
// have more shared leases, and serves sessions without a lease as well. A session under a lease may
// use that lease's devices only. The key of a lease is its public id and a secret; a lease with a
// user is for that user only.
//
// Times are of the wall clock, because leases outlive the daemon (lease_file.h). The object knows
// no sessions: callers pass in what runs. Threads: the daemon's only thread. Blocking: none. Errors
// name the lease or the devices and the remedy; none contains a secret. Only errors of take() name
// other users, and only operators see those.
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
  // Kept as it is, not as a hash: who takes a lease again for the same job gets the same key.
  wire::LeaseSecret secret{};
  std::optional<uid_t> uid;       // of the user, if this machine knows that user
  std::string user;               // who may use it; empty: whoever has the key
  std::string job;                // free text; at most one lease has a job's text
  std::vector<uint32_t> devices;  // in ascending order; the server's numbers
  bool exclusive = true;
  bool oversubscribes = false;  // the server may park its sessions for the room of others
  std::chrono::sys_seconds created;
  std::optional<std::chrono::sys_seconds> until;  // none: no end
  std::string creator;

  bool operator==(const Lease&) const = default;
};

// "1a2b3c4d of slurm 4711 (user ada)"
std::string text_of(const Lease& lease);
// Whether a client may use the lease if it has the key.
bool is_for(const Lease& lease, const Identity& who);

class Leases {
 public:
  using Time = std::chrono::sys_seconds;
  static constexpr size_t kMost = 1000;
  // In one LeaseAnswer, which must fit into the room of a socket: the daemon waits for no reader.
  static constexpr size_t kMostInPage = 32;

  // A session that runs. Its identity says under which lease.
  struct Use {
    Identity who;
    std::vector<uint32_t> devices;
    std::optional<LostClient> lost{};  // if the session makes room
  };
  struct Taken {
    Lease lease;
    bool is_new = false;  // false: the job had this lease before
  };

  // `wish`: a lease without the secret, and with no id if the server is to choose that. `count`: of
  // devices, if it names none.
  // `offered`: the server's devices; empty if they are not known yet. Then only named devices can
  // be had. Devices with the fewest leases and sessions are chosen first. An exclusive lease gets
  // devices without other leases and without sessions of other users (without any if it is nobody's
  // in particular). A job that has a lease of the same devices gets it again, with its old end. So
  // does a client that asks again with the id that it has chosen.
  // kUnavailable if devices are taken; the text names their holders.
  Result<Taken> take(Lease wish, uint32_t count, const std::vector<uint32_t>& offered,
                     const std::vector<Use>& uses, Time now);
  // The sessions with disconnected clients that must end before take() succeeds. Empty if none must
  // end, or if their ends would not suffice.
  std::vector<LostClient> in_the_way(const Lease& wish, uint32_t count,
                                     const std::vector<uint32_t>& offered,
                                     const std::vector<Use>& uses, Time now) const;
  // Moves the end. kNotFound if there is no such lease.
  Result<Lease> extend(const std::string& id, const std::string& job, std::optional<Time> until);
  // The lease that is gone now; none if there was none.
  std::optional<Lease> revoke(const std::string& id, const std::string& job);
  // Removes and returns the leases that have ended.
  std::vector<Lease> expire(Time now);
  std::optional<Time> next_end() const;

  // Checks a client's key: tls::lease_proof() for the connection with this binding. kDenied if the
  // lease is unknown, has ended, has another secret, or is for another user. Its own user needs no
  // proof (zero): `who` is proved. The time of the call does not depend on the secret.
  Result<Lease> unlock(const std::string& id, const tls::Key& proof, const tls::Key& binding,
                       const Identity& who) const;
  // Whether a session may use these devices: under the lease `id`, or without one if that is empty.
  // kDenied if no wait would help; kUnavailable while other leases keep the devices.
  Status check_devices(const std::vector<uint32_t>& devices, const std::string& id,
                       const std::vector<uint32_t>& offered) const;

  // Of those that are `shown`, the first with an id above `after`, in the order of their ids.
  std::vector<const Lease*> page(const std::string& after,
                                 const std::function<bool(const Lease&)>& shown) const;

  const std::vector<Lease>& all() const { return leases_; }
  void restore(std::vector<Lease> leases) { leases_ = std::move(leases); }

 private:
  const Lease* find(const std::string& id, const std::string& job) const;
  const Lease* exclusive_of(uint32_t device) const;
  // Why a wish cannot have a device; empty: it can.
  std::string obstacle(const Lease& wish, uint32_t device, const std::vector<Use>& uses) const;
  Result<std::vector<uint32_t>> choose(const Lease& wish, uint32_t count,
                                       const std::vector<uint32_t>& offered,
                                       const std::vector<Use>& uses) const;
  Result<Taken> again(const Lease& lease, const Lease& wish, uint32_t count) const;

  std::vector<Lease> leases_;  // the oldest first
};

}  // namespace rcuda::server
