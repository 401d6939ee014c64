#include "server/daemon/ops/lease_requests.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <openssl/crypto.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/admission/lease_file.h"
#include "server/identity/token_store.h"

namespace rcuda::server {
namespace {

using wire::LeaseOperation;

constexpr uint64_t kMostSeconds = uint64_t{100} * 366 * 24 * 3600;

Leases::Time wall_clock() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

// Ends of leases are whole seconds, rounded up, so that no lease ends early.
std::optional<Leases::Time> end_after(uint64_t seconds) {
  if (seconds == 0) return std::nullopt;
  return std::chrono::ceil<std::chrono::seconds>(std::chrono::system_clock::now()) +
         std::chrono::seconds(seconds);
}

// The creator's name, or only the number of the user if the name is not known: the file of leases
// allows no spaces in this field, and user_text() has a space.
std::string creator_of(const Identity& who) {
  return who.uid && who.user == user_text(*who.uid) ? std::to_string(*who.uid) : who.user;
}

Status check_request(const wire::LeaseRequest& request) {
  if (request.seconds > kMostSeconds) {
    return Status(Code::kInvalidArgument, "a lease lasts at most 100 years: name a shorter time");
  }
  const bool names_one = !request.id.empty() || !request.job.empty();
  const bool needs_one =
      request.operation == LeaseOperation::kExtend || request.operation == LeaseOperation::kRevoke;
  if (needs_one && !names_one) {
    return Status(Code::kInvalidArgument,
                  "the request names neither the id of a lease nor a job: name one of them");
  }
  if (!request.id.empty() && !wire::is_lease_id(request.id)) {
    return Status(Code::kInvalidArgument,
                  "the request's lease id is not eight hexadecimal digits: rcuda-lease list shows "
                  "the ids of leases");
  }
  return {};
}

wire::LeaseInfo describe(const Lease& lease, const std::vector<Leases::Use>& uses,
                         const WorkerPool& pool) {
  wire::LeaseInfo info = info_of(lease);
  for (const Leases::Use& use : uses) info.sessions += use.who.lease == lease.id;
  pool.report(&info);
  return info;
}

}  // namespace

LeaseRequests::LeaseRequests(const Settings& settings, Admission& admission,
                             Authenticator& authenticator, Audit& audit, WorkerPool& pool)
    : settings_(settings),
      admission_(admission),
      authenticator_(authenticator),
      audit_(audit),
      pool_(pool),
      path_(leases_path(settings)) {}

Status LeaseRequests::open() {
  if (path_.empty()) return {};
  RCUDA_ASSIGN_OR_RETURN(std::vector<Lease> leases, load_leases(path_));
  admission_.leases().restore(std::move(leases));
  return {};
}

Status LeaseRequests::save(const Leases& leases) const {
  return path_.empty() ? Status() : save_leases(path_, leases.all());
}

void LeaseRequests::expire() {
  const std::vector<Lease> ended = admission_.leases().expire(wall_clock());
  for (const Lease& lease : ended) {
    note("expired", lease, {});
    pool_.end_leased(lease.id, "the lease " + text_of(lease) +
                                   " has expired: take a new lease (rcuda-lease take). To "
                                   "use a lease longer, extend it before it ends "
                                   "(rcuda-lease extend)");
  }
  if (ended.empty()) return;
  admission_.review();
  if (const Status saved = save(admission_.leases()); !saved.ok()) {
    RCUDA_ERROR("cannot record expired leases: %s", saved.message().c_str());
  }
}

void LeaseRequests::note(const char* what, const Lease& lease, const std::optional<Identity>& by) {
  RCUDA_INFO("lease %s %s%s", text_of(lease).c_str(), what, by ? (" by " + by->user).c_str() : "");
  audit_.lease(what, lease, by);
}

Status LeaseRequests::unlock(wire::Hello* hello, const tls::Key& binding,
                             Identity* identity) const {
  tls::Key proof;
  std::ranges::copy(hello->lease_proof, proof.begin());
  OPENSSL_cleanse(hello->lease_proof, sizeof hello->lease_proof);
  if (hello->lease.empty()) {
    if (!settings_.require_lease.get()) return {};
    return Status(Code::kDenied,
                  "this server serves only sessions with a lease, and RCUDA_LEASE has no lease of "
                  "this server: ask the batch system for devices, or an operator for a lease "
                  "(rcuda-lease take)");
  }
  RCUDA_ASSIGN_OR_RETURN(const Lease lease,
                         admission_.leases().unlock(hello->lease, proof, binding, *identity));
  identity->lease = lease.id;
  identity->job = lease.job;
  identity->lease_oversubscribes = lease.oversubscribes;
  return {};
}

Result<wire::LeaseRequest> LeaseRequests::check(const std::vector<std::byte>& body,
                                                const Identity& who) const {
  Result<wire::LeaseRequest> request = wire::decode<wire::LeaseRequest>(body);
  if (!request.ok()) return request;
  RCUDA_RETURN_IF_ERROR(check_request(*request));
  if (request->operation == LeaseOperation::kList || authenticator_.is_operator(who))
    return request;
  return authenticator_.not_operator(who, "lease devices of this server");
}

Result<std::optional<wire::LeaseAnswer>> LeaseRequests::answer(const wire::LeaseRequest& request,
                                                               const Identity& who) {
  wire::LeaseAnswer answer;
  switch (request.operation) {
    case LeaseOperation::kTake: {
      RCUDA_ASSIGN_OR_RETURN(const bool taken, take(request, who, &answer));
      if (!taken) return {std::nullopt};
      break;
    }
    case LeaseOperation::kExtend:
    case LeaseOperation::kRevoke:
      RCUDA_RETURN_IF_ERROR(change(request, who, &answer));
      break;
    case LeaseOperation::kList:
      list(request, who, &answer);
      break;
  }
  return {std::move(answer)};
}

Result<bool> LeaseRequests::take(const wire::LeaseRequest& request, const Identity& who,
                                 wire::LeaseAnswer* answer) {
  Lease wish;
  if (!request.user.empty()) {
    const AccountKey key = account_key(request.user);
    const std::optional<Result<Account>> account =
        authenticator_.account(key, Authenticator::Clock::now());
    if (!account) return false;
    const uid_t* const number = std::get_if<uid_t>(&key);
    // A user that is named by number needs no account. A server that is not root also serves users
    // whom its machine does not know, by their tokens.
    const bool unknown =
        account->status().code() == Code::kNotFound && (number || ::geteuid() != 0);
    if (!account->ok() && !unknown) return account->status();
    if (!authenticator_.may_serve(account->ok() ? &account->value() : nullptr)) {
      answer->message = "this server does not serve user " + request.user +
                        ", so this user cannot use the lease: add " + request.user +
                        " to its setting \"users\", then run rcuda-smi reload";
    }
    wish.user = unknown ? request.user : (*account)->user;
    if (!unknown) wish.uid = (*account)->uid;
    if (unknown && number) wish.uid = *number;
  }
  wish.id = request.id;
  wish.job = request.job;
  wish.creator = creator_of(who);
  wish.devices = request.devices;
  wish.exclusive = !request.shared;
  wish.oversubscribes = request.oversubscribed;
  wish.until = end_after(request.seconds);
  const std::vector<uint32_t> offered = pool_.offer().ordinals();
  if (wish.devices.empty() && offered.empty() && pool_.starting() != 0) return false;
  const std::vector<Leases::Use> uses = pool_.uses();
  const Leases::Time now = wall_clock();
  Leases leases = admission_.leases();
  Result<Leases::Taken> made = leases.take(wish, request.count, offered, uses, now);
  if (made.status().code() == Code::kUnavailable && request.waits) {
    for (const LostClient& client : leases.in_the_way(wish, request.count, offered, uses, now)) {
      pool_.end_lost(client.worker, "a lease that user " + who.user + " takes");
    }
  }
  RCUDA_ASSIGN_OR_RETURN(const Leases::Taken taken, std::move(made));
  if (taken.is_new) {
    // A lease must outlive a restart.
    if (const Status saved = save(leases); !saved.ok()) {
      return Status(saved).with_context("cannot save the lease");
    }
    admission_.leases() = std::move(leases);
    admission_.review();
    note("taken", taken.lease, who);
  }
  answer->secret = taken.lease.secret;
  answer->leases.push_back(describe(taken.lease, uses, pool_));
  return true;
}

Status LeaseRequests::change(const wire::LeaseRequest& request, const Identity& who,
                             wire::LeaseAnswer* answer) {
  const bool extends = request.operation == LeaseOperation::kExtend;
  Leases leases = admission_.leases();
  std::optional<Lease> lease;
  if (extends) {
    RCUDA_ASSIGN_OR_RETURN(lease,
                           leases.extend(request.id, request.job, end_after(request.seconds)));
  } else {
    lease = leases.revoke(request.id, request.job);
  }
  // Even without a change, because an earlier save may have failed.
  RCUDA_RETURN_IF_ERROR(save(leases));
  if (!lease) {
    // Not an error: the epilog of a job may run twice, or after the lease has expired.
    answer->message = "there is no lease " +
                      (request.id.empty() ? "of " + request.job : request.id) +
                      ", so nothing was revoked";
    return {};
  }
  admission_.leases() = std::move(leases);
  note(extends ? "extended" : "revoked", *lease, who);
  answer->leases.push_back(describe(*lease, pool_.uses(), pool_));
  if (!extends) {
    pool_.end_leased(lease->id, "the lease " + text_of(*lease) + " was revoked");
  }
  admission_.review();
  return {};
}

void LeaseRequests::report(wire::ServerStatus* status, const Viewer& to) const {
  std::map<uint32_t, wire::ServerStatus::Leased> leased;
  for (const Lease& lease : admission_.leases().all()) {
    for (const uint32_t device : lease.devices) {
      wire::ServerStatus::Leased& one = leased[device];
      one.ordinal = device;
      if (!lease.exclusive) {
        ++one.shared;
        continue;
      }
      one.id = lease.id;
      if (to.sees_all || (!lease.user.empty() && is_for(lease, to.user))) one.user = lease.user;
      one.until = info_of(lease).until;
    }
  }
  for (auto& [device, one] : leased) status->leased.push_back(std::move(one));
}

// An operator gets all leases, another user only the leases of that user.
void LeaseRequests::list(const wire::LeaseRequest& request, const Identity& who,
                         wire::LeaseAnswer* answer) const {
  const std::string& job = request.job;
  const bool all = authenticator_.is_operator(who);
  const std::vector<Leases::Use> uses = pool_.uses();
  const auto shown = [&](const Lease& lease) {
    return (job.empty() || lease.job == job) &&
           (all || (!lease.user.empty() && is_for(lease, who)));
  };
  for (const Lease* lease : admission_.leases().page(request.id, shown)) {
    answer->leases.push_back(describe(*lease, uses, pool_));
  }
}

}  // namespace rcuda::server
