#include "server/daemon/admission/leases.h"

#include <algorithm>
#include <array>
#include <utility>

#include <openssl/crypto.h>

#include "common/base/list_text.h"
#include "common/base/printable.h"
#include "common/base/random_bytes.h"
#include "common/base/units.h"
#include "common/identity/encoding.h"
#include "server/identity/token_store.h"

namespace rcuda::server {
namespace {

bool contains(const std::vector<uint32_t>& devices, uint32_t device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

std::vector<uint32_t> sorted(std::vector<uint32_t> devices) {
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

std::string devices_text(const std::vector<uint32_t>& devices) {
  return (devices.size() == 1 ? "device " : "devices ") + list_of(devices);
}

std::string end_text(const Lease& lease) {
  return lease.until ? " until " + format_time(*lease.until) : "";
}

std::string lost_text(const LostClient& lost) {
  const std::string worker = " (worker " + std::to_string(lost.worker);
  if (lost.ends) return worker + ", ends now)";
  return worker + ", disconnected for " + rounded_time_text(lost.lost_for) + ": " + lost.command() +
         " ends that session now, and rcuda-lease take --wait 60s ends it" + lost.when() + ")";
}

// The user of a lease as an Identity, for same_user().
Identity identity_of(const Lease& lease) {
  Identity identity;
  identity.uid = lease.uid;
  identity.user = lease.user;
  return identity;
}

bool is_usable(const std::string& text) {
  return text.size() <= wire::kMostLeaseText && is_printable(text);
}

Status check(const Lease& wish, uint32_t count, const std::vector<uint32_t>& offered) {
  const std::string names = wish.user + wish.creator;
  if (!is_usable(wish.job) || !is_usable(names) || names.find(' ') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "the job or the user of the lease is not usable: each may have at most " +
                      std::to_string(wire::kMostLeaseText) +
                      " characters and no control characters, and a user may not contain spaces");
  }
  if (wish.devices.empty() && count == 0) {
    return Status(Code::kInvalidArgument,
                  "the request names no device: a lease needs at least one");
  }
  if (sorted(wish.devices).size() != wish.devices.size()) {
    return Status(Code::kInvalidArgument,
                  "the request names a device twice: name each device once");
  }
  if (wish.devices.empty() && offered.empty()) {
    return Status(Code::kUnavailable,
                  "the server does not know its devices before its first worker has started: name "
                  "devices, or let the server keep workers ready (--pool)");
  }
  return check_offered(wish.devices, offered);
}

}  // namespace

Status check_offered(const std::vector<uint32_t>& devices, const std::vector<uint32_t>& offered) {
  for (const uint32_t device : devices) {
    if (!offered.empty() && !contains(offered, device)) {
      return Status(Code::kNotFound, "the server does not offer device " + std::to_string(device) +
                                         "; it offers " + list_of(offered));
    }
  }
  return {};
}

std::string text_of(const Lease& lease) {
  std::string text = lease.id;
  if (!lease.job.empty()) text += " of " + lease.job;
  if (!lease.user.empty()) text += " (user " + lease.user + ")";
  return text;
}

wire::LeaseInfo info_of(const Lease& lease) {
  const auto seconds_of = [](Leases::Time time) {
    return static_cast<uint64_t>(std::max<int64_t>(time.time_since_epoch().count(), 0));
  };
  wire::LeaseInfo info;
  info.id = lease.id;
  info.job = lease.job;
  info.user = lease.user;
  info.creator = lease.creator;
  info.devices = lease.devices;
  info.shared = !lease.exclusive;
  info.oversubscribed = lease.oversubscribes;
  info.created = seconds_of(lease.created);
  if (lease.until) info.until = seconds_of(*lease.until);
  return info;
}

bool is_for(const Lease& lease, const Identity& who) {
  return lease.user.empty() || same_user(identity_of(lease), who);
}

const Lease* Leases::find(const std::string& id, const std::string& job) const {
  const auto found = std::find_if(leases_.begin(), leases_.end(), [&](const Lease& lease) {
    return !id.empty() ? lease.id == id : !job.empty() && lease.job == job;
  });
  return found == leases_.end() ? nullptr : &*found;
}

const Lease* Leases::exclusive_of(uint32_t device) const {
  const auto found = std::find_if(leases_.begin(), leases_.end(), [&](const Lease& lease) {
    return lease.exclusive && contains(lease.devices, device);
  });
  return found == leases_.end() ? nullptr : &*found;
}

std::string Leases::obstacle(const Lease& wish, uint32_t device,
                             const std::vector<Use>& uses) const {
  const std::string name = "device " + std::to_string(device);
  for (const Lease& lease : leases_) {
    if (contains(lease.devices, device) && (lease.exclusive || wish.exclusive)) {
      return name + " has lease " + text_of(lease) + end_text(lease);
    }
  }
  if (!wish.exclusive) return {};
  for (const Use& use : uses) {
    const bool own =
        !wish.user.empty() && use.who.lease.empty() && same_user(identity_of(wish), use.who);
    if (contains(use.devices, device) && !own) {
      return name + " has a session of " + use.who.user +
             (use.who.lease.empty() ? "" : ", which ends when its lease ends") +
             (use.lost ? lost_text(*use.lost) : "");
    }
  }
  return {};
}

Result<std::vector<uint32_t>> Leases::choose(const Lease& wish, uint32_t count,
                                             const std::vector<uint32_t>& offered,
                                             const std::vector<Use>& uses) const {
  std::string obstacles;
  std::vector<std::pair<size_t, uint32_t>> free;  // uses (leases and sessions), device
  for (const uint32_t device : wish.devices.empty() ? offered : wish.devices) {
    if (const std::string why = obstacle(wish, device, uses); !why.empty()) {
      append_item(&obstacles, why, "; ");
      continue;
    }
    const auto has = [&](const auto& item) { return contains(item.devices, device); };
    free.emplace_back(std::count_if(leases_.begin(), leases_.end(), has) +
                          std::count_if(uses.begin(), uses.end(), has),
                      device);
  }
  const size_t wanted = wish.devices.empty() ? count : wish.devices.size();
  if (free.size() < wanted && obstacles.empty()) {
    return Status(Code::kNotFound, "the request asks for " + std::to_string(wanted) +
                                       " devices, and the server has only " +
                                       std::to_string(offered.size()) + ": ask for fewer");
  }
  if (free.size() < wanted) {
    return Status(Code::kUnavailable, "the request asks for " + std::to_string(wanted) +
                                          (wanted == 1 ? " device, and " : " devices, and ") +
                                          std::to_string(free.size()) +
                                          (free.size() == 1 ? " is" : " are") +
                                          " available: " + obstacles);
  }
  std::sort(free.begin(), free.end());
  std::vector<uint32_t> devices;
  for (size_t i = 0; i < wanted; ++i) devices.push_back(free[i].second);
  return sorted(std::move(devices));
}

// The prolog of a job may run twice. The second time, the job gets the lease that it already has.
Result<Leases::Taken> Leases::again(const Lease& lease, const Lease& wish, uint32_t count) const {
  const bool same_devices =
      wish.devices.empty() ? lease.devices.size() == count : lease.devices == sorted(wish.devices);
  const bool same_job =
      lease.job == wish.job && (!wish.job.empty() || lease.creator == wish.creator);
  if (same_devices && same_job && lease.exclusive == wish.exclusive && lease.user == wish.user &&
      lease.oversubscribes == wish.oversubscribes) {
    return Taken{lease, false};
  }
  if (!same_job)
    return Status(Code::kInvalidArgument,
                  "the lease id " + lease.id + " belongs to another lease: request another id");
  return Status(Code::kInvalidArgument,
                (wish.job.empty() ? "this request" : wish.job) + " already has lease " + lease.id +
                    ": " + (lease.exclusive ? "exclusive, " : "shared, ") +
                    (lease.oversubscribes ? "oversubscribed, " : "") + devices_text(lease.devices) +
                    (lease.user.empty() ? "" : " for user " + lease.user) +
                    ". Revoke that lease first, or request the same "
                    "devices for the same user");
}

Result<Leases::Taken> Leases::take(Lease wish, uint32_t count, const std::vector<uint32_t>& offered,
                                   const std::vector<Use>& uses, Time now) {
  // A repeated request finds its lease before check(): a server that has just started knows its
  // leases, but not its devices, so check() would refuse the request.
  if (const Lease* lease = find({}, wish.job)) return again(*lease, wish, count);
  if (const Lease* lease = find(wish.id, {})) return again(*lease, wish, count);
  RCUDA_RETURN_IF_ERROR(check(wish, count, offered));
  if (wish.until && *wish.until <= now) {
    return Status(Code::kInvalidArgument, "the end of the lease is in the past: name a later time");
  }
  if (leases_.size() >= kMost) {
    return Status(Code::kUnavailable, "the server has " + std::to_string(kMost) +
                                          " leases, as many as it can have: revoke some of them");
  }
  RCUDA_ASSIGN_OR_RETURN(wish.devices, choose(wish, count, offered, uses));
  RCUDA_RETURN_IF_ERROR(fill_randomly(wish.secret));
  while (wish.id.empty() || find(wish.id, {})) {
    std::array<uint8_t, 4> id;
    RCUDA_RETURN_IF_ERROR(fill_randomly(id));
    wish.id = identity::to_hex(id);
  }
  wish.created = now;
  leases_.push_back(wish);
  return Taken{std::move(wish), true};
}

std::vector<LostClient> Leases::in_the_way(const Lease& wish, uint32_t count,
                                           const std::vector<uint32_t>& offered,
                                           const std::vector<Use>& uses, Time now) const {
  std::vector<Use> stay, lost;
  for (const Use& use : uses) {
    (use.lost && (use.lost->ends || use.lost->may_end()) ? lost : stay).push_back(use);
  }
  const auto fits = [&](const std::vector<Use>& with) {
    return Leases(*this).take(wish, count, offered, with, now).ok();
  };
  if (!fits(stay)) return {};
  // Spares the sessions that were lost last: the loop begins with them, and a session stays if the
  // lease still fits beside the sessions that stay. Sessions that are already ending come last,
  // because their devices are free soon.
  std::ranges::sort(lost, {},
                    [](const Use& use) { return std::pair(use.lost->ends, use.lost->lost_for); });
  std::vector<LostClient> ends;
  for (Use& use : lost) {
    stay.push_back(use);
    if (fits(stay)) continue;
    stay.pop_back();
    if (!use.lost->ends) ends.push_back(*use.lost);
  }
  return ends;
}

Result<Lease> Leases::extend(const std::string& id, const std::string& job,
                             std::optional<Time> until) {
  const Lease* const found = find(id, job);
  if (!found) {
    return Status(Code::kNotFound, "there is no lease " + (id.empty() ? "of " + job : id) +
                                       ": it has ended, or belongs to another server");
  }
  Lease& lease = leases_[static_cast<size_t>(found - leases_.data())];
  lease.until = until;
  return lease;
}

std::optional<Lease> Leases::revoke(const std::string& id, const std::string& job) {
  const Lease* const found = find(id, job);
  if (!found) return std::nullopt;
  Lease lease = *found;
  leases_.erase(leases_.begin() + (found - leases_.data()));
  return lease;
}

std::vector<Lease> Leases::expire(Time now) {
  std::vector<Lease> ended;
  const auto has_ended = [&](const Lease& lease) { return lease.until && *lease.until <= now; };
  std::copy_if(leases_.begin(), leases_.end(), std::back_inserter(ended), has_ended);
  std::erase_if(leases_, has_ended);
  return ended;
}

std::vector<const Lease*> Leases::page(const std::string& after,
                                       const std::function<bool(const Lease&)>& shown) const {
  std::vector<const Lease*> found;
  for (const Lease& lease : leases_) {
    if (lease.id > after && shown(lease)) found.push_back(&lease);
  }
  std::sort(found.begin(), found.end(),
            [](const Lease* a, const Lease* b) { return a->id < b->id; });
  found.resize(std::min(found.size(), kMostInPage));
  return found;
}

std::optional<Leases::Time> Leases::next_end() const {
  std::optional<Time> next;
  for (const Lease& lease : leases_) {
    if (lease.until && (!next || *lease.until < *next)) next = lease.until;
  }
  return next;
}

Result<Lease> Leases::unlock(const std::string& id, const tls::Key& proof, const tls::Key& binding,
                             const Identity& who) const {
  // Do not echo a malformed id: a peer may send any text.
  if (!wire::is_lease_id(id))
    return Status(Code::kProtocol,
                  "the client sent a malformed lease id: set RCUDA_LEASE to the output of "
                  "rcuda-lease take");
  const Lease* const lease = find(id, {});
  const bool without = lease && !lease->user.empty() && proof == tls::Key{};
  const auto is_proved = [&] {
    const tls::Key wanted = tls::lease_proof(lease->secret, binding);
    return CRYPTO_memcmp(wanted.data(), proof.data(), proof.size()) == 0;
  };
  if (!lease || (!without && !is_proved())) {
    return Status(Code::kDenied, "the lease " + id +
                                     " in RCUDA_LEASE has ended, or belongs to another server: "
                                     "take a new lease (rcuda-lease take), or unset RCUDA_LEASE");
  }
  if (!is_for(*lease, who)) {
    return Status(Code::kDenied, "the lease " + id + " is for user " + lease->user + ", not for " +
                                     who.user + ": use a lease of your own, or unset RCUDA_LEASE");
  }
  return *lease;
}

Status Leases::check_devices(const std::vector<uint32_t>& devices, const std::string& id,
                             const std::vector<uint32_t>& offered) const {
  if (!id.empty()) {
    const Lease* const lease = find(id, {});
    if (!lease) {
      return Status(Code::kDenied, "the lease " + id +
                                       " has ended: take a new lease (rcuda-lease take), or unset "
                                       "RCUDA_LEASE");
    }
    for (const uint32_t device : devices) {
      if (contains(lease->devices, device)) continue;
      return Status(Code::kDenied, "the lease " + id + " has " + devices_text(lease->devices) +
                                       " of this server, not device " + std::to_string(device) +
                                       ": name its devices in RCUDA_DEVICES");
    }
    return {};
  }
  for (const uint32_t device : devices) {
    const Lease* const lease = exclusive_of(device);
    if (!lease) continue;
    std::vector<uint32_t> free;
    for (const uint32_t other : offered) {
      if (!exclusive_of(other)) free.push_back(other);
    }
    return Status(Code::kUnavailable,
                  "device " + std::to_string(device) + " is leased exclusively (lease " +
                      lease->id + end_text(*lease) +
                      "): set RCUDA_LEASE if the lease is yours, wait for its end, or use another "
                      "device (not leased: " +
                      (free.empty() ? std::string("none") : list_of(free)) + ")");
  }
  return {};
}

}  // namespace rcuda::server
