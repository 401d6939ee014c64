// Leases on the wire: an operator asks a server to lease devices to a user or a job
// (docs/leases.md).
//
//   operator -> daemon   LeaseRequest, after the operator has identified itself as for a Hello
//   daemon -> operator   LeaseAnswer, or Refusal; the daemon closes
//
// A client presents the key of a lease: its public id and its secret. The lease's own user needs no
// secret, because the server knows the user. RCUDA_LEASE contains the keys of a program, one for
// each server:
//
//   RCUDA_LEASE=[host[@port]=]ID[:SECRET][,...]    e.g. node1=1a2b3c4d:0123...,node2@9000=...
//
// An entry without a host is for every server that no other entry names. Threads: any; nothing
// blocks. Errors contain no secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/messages/forms.h"
#include "common/messages/message.h"
#include "common/messages/work.h"

namespace rcuda::wire {

using LeaseSecret = std::array<uint8_t, 16>;
inline constexpr LeaseSecret kNoLeaseSecret{};

// The longest name of a job or a user, in bytes.
inline constexpr size_t kMostLeaseText = 256;

enum class LeaseOperation : uint32_t { kTake = 1, kExtend = 2, kRevoke = 3, kList = 4 };

struct LeaseRequest {
  static constexpr char kName[] = "LeaseRequest";
  static constexpr MessageType kForm = MessageType::kLeaseRequest;
  LeaseOperation operation{};
  // kExtend, kRevoke: the lease; empty: the lease of `job`. kTake: the new lease's random id; a
  // repeated request with it returns the same lease. kList: only leases with ids above this one.
  std::string id;
  std::string job;   // free text, such as "slurm 4711"; kList: only leases of this job
  std::string user;  // kTake: the lease's user, by name or number; empty: any client with the key
  std::vector<uint32_t> devices;  // kTake: these devices; empty: the server chooses `count` devices
  uint32_t count = 0;
  bool shared = false;   // kTake: others may have leases of the same devices
  uint64_t seconds = 0;  // kTake, kExtend: from now; 0: no end
  // kTake: the operator repeats the request while devices are in use. So the server may end
  // disconnected sessions that hold the devices.
  bool waits = false;
  // kTake: the server may oversubscribe the leased devices, if it oversubscribes any.
  bool oversubscribed = false;
};

struct LeaseInfo {
  std::string id, job, user;
  std::string creator;
  std::vector<uint32_t> devices;
  bool shared = false;
  bool oversubscribed = false;
  uint64_t created = 0;
  uint64_t until = 0;     // seconds since 1970, as `created`; 0: no end
  uint32_t sessions = 0;  // sessions in progress
  // The work of the lease's sessions since the server's start, including sessions in progress.
  // `device_ms` adds each session's time, multiplied by the number of its devices.
  uint64_t begun = 0;  // number of sessions
  uint64_t device_ms = 0;
  Work work{};
};

struct LeaseAnswer {
  static constexpr char kName[] = "LeaseAnswer";
  static constexpr MessageType kForm = MessageType::kLeaseAnswer;
  std::string message;   // for people; may be empty
  LeaseSecret secret{};  // kTake: the new lease's secret; otherwise zero
  // The lease that was taken, extended or revoked; or the next part of the list, in the order of
  // ids. Empty at the end of the list.
  std::vector<LeaseInfo> leases;
};

extern template struct Codec<LeaseRequest>;
extern template struct Codec<LeaseAnswer>;

struct LeaseKey {
  std::string host;   // empty: every server
  uint16_t port = 0;  // of `host`; format() omits 0 and kDefaultPort
  std::string id;
  LeaseSecret secret = kNoLeaseSecret;
};

// Whether the text is a lease's id: eight lower-case hexadecimal digits.
bool is_lease_id(std::string_view text);
// Returns the key as an entry of RCUDA_LEASE.
std::string format(const LeaseKey& key);
// Parses RCUDA_LEASE. kInvalidArgument names the malformed entry by its number.
Result<std::vector<LeaseKey>> parse_lease_keys(std::string_view text);
// Returns the key for a server, as RCUDA_DEVICES names the server. Case does not matter.
std::optional<LeaseKey> find_lease_key(const std::vector<LeaseKey>& keys, std::string_view host,
                                       uint16_t port);

}  // namespace rcuda::wire
