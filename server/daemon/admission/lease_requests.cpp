// The part of the daemon that has to do with leases: what operators ask for, and whether a session
// may have its devices.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include <openssl/crypto.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/admission/lease_file.h"
#include "server/daemon/daemon.h"
#include "server/identity/token_store.h"

namespace rcuda::server {
namespace {

using wire::LeaseOperation;

constexpr uint64_t kMostSeconds = uint64_t{100} * 366 * 24 * 3600;
constexpr auto kLongestLookUp = std::chrono::seconds(4);

Leases::Time wall_clock() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

std::optional<Leases::Time> end_after(uint64_t seconds) {
  if (seconds == 0) return std::nullopt;
  return wall_clock() + std::chrono::seconds(seconds);
}

AccountKey account_key(const std::string& user) {
  uid_t number = 0;
  const char* const end = user.data() + user.size();
  const auto [rest, error] = std::from_chars(user.data(), end, number);
  if (error == std::errc() && rest == end) return number;
  return user;
}

// Without spaces, also before the user's name has been looked up.
std::string creator_of(const Identity& who) {
  return who.uid && who.user == user_text(*who.uid) ? std::to_string(*who.uid) : who.user;
}

uint64_t seconds_of(Leases::Time time) {
  return static_cast<uint64_t>(std::max<int64_t>(time.time_since_epoch().count(), 0));
}

Status check_request(const wire::LeaseRequest& request) {
  if (request.seconds > kMostSeconds) {
    return Status(Code::kInvalidArgument, "a lease lasts 100 years at most");
  }
  const bool names_one = !request.id.empty() || !request.job.empty();
  const bool needs_one =
      request.operation == LeaseOperation::kExtend || request.operation == LeaseOperation::kRevoke;
  if (needs_one && !names_one) {
    return Status(Code::kInvalidArgument, "neither a lease nor a job is named");
  }
  if (!request.id.empty() && !wire::is_lease_id(request.id)) {
    return Status(Code::kInvalidArgument, "a lease's id has eight hexadecimal digits");
  }
  return {};
}

wire::LeaseInfo describe(const Lease& lease, const std::vector<Leases::Use>& uses,
                         const WorkerPool& pool) {
  wire::LeaseInfo info;
  info.id = lease.id;
  info.job = lease.job;
  info.user = lease.user;
  info.creator = lease.creator;
  info.devices = lease.devices;
  info.shared = !lease.exclusive;
  info.created = seconds_of(lease.created);
  if (lease.until) info.until = seconds_of(*lease.until);
  for (const Leases::Use& use : uses) info.sessions += use.who.lease == lease.id;
  pool.report(&info);
  return info;
}

}  // namespace

Status Daemon::open_leases() {
  leases_path_ = leases_path(settings_);
  if (leases_path_.empty()) return {};
  Result<std::vector<Lease>> leases = load_leases(leases_path_);
  if (!leases.ok()) return leases.status();
  leases_.restore(std::move(leases).value());
  return {};
}

Status Daemon::save_leases() const {
  if (leases_path_.empty()) return {};
  return server::save_leases(leases_path_, leases_.all());
}

// Ends the leases whose time is over, and their sessions.
void Daemon::end_leases() {
  const std::vector<Lease> ended = leases_.expire(wall_clock());
  for (const Lease& lease : ended) {
    note_lease("expired", lease, {});
    pool_->end_leased(lease.id, "the lease " + text_of(lease) +
                                    " has expired: take another, or extend it in time "
                                    "(rcuda-lease extend)");
  }
  if (ended.empty()) return;
  if (const Status saved = save_leases(); !saved.ok()) {
    RCUDA_ERROR("the end of leases is not kept: %s", saved.message().c_str());
  }
}

void Daemon::note_lease(const char* what, const Lease& lease, const std::optional<Identity>& by) {
  RCUDA_INFO("lease %s %s%s", text_of(lease).c_str(), what, by ? (" by " + by->user).c_str() : "");
  audit_.lease(what, lease, by);
}

// Finds the lease of a client by its key. From here on the identity names the lease, and nobody
// needs the secret.
Status Daemon::unlock_lease(wire::Hello* hello, Identity* identity) const {
  wire::LeaseSecret secret;
  std::copy(std::begin(hello->lease_secret), std::end(hello->lease_secret), secret.begin());
  OPENSSL_cleanse(hello->lease_secret, sizeof hello->lease_secret);
  if (hello->lease.empty()) {
    if (!settings_.require_lease.get()) return {};
    return Status(Code::kDenied,
                  "this server serves only sessions with a lease, and RCUDA_LEASE names none for "
                  "it: ask the batch system for devices, or an operator for a lease (rcuda-lease "
                  "take)");
  }
  const Result<Lease> lease = leases_.unlock(hello->lease, secret, *identity);
  if (!lease.ok()) return lease.status();
  identity->lease = lease->id;
  identity->job = lease->job;
  return {};
}

Status Daemon::check_lease(const Connection& connection) const {
  return leases_.admit(connection.hello.devices, connection.identity->lease,
                       pool_->offer().ordinals());
}

// Whether no lease of others keeps the client from its devices. A client that waits (RCUDA_WAIT)
// waits for that too, before it takes a place in the queue.
Result<bool> Daemon::has_devices(Connection& connection) {
  const std::chrono::milliseconds wait(connection.hello.wait_ms);
  const Status status = check_lease(connection);
  if (status.ok()) connection.lease_obstacle.clear();
  if (status.ok()) return true;
  if (status.code() != Code::kUnavailable || wait.count() == 0) return status;
  if (connection.lease_obstacle.empty()) RCUDA_RETURN_IF_ERROR(check_lease_queue(connection));
  connection.lease_obstacle = status.context();
  connection.deadline = connection.waits_since + wait;
  return false;
}

// Whether one more client may wait for a lease to end.
Status Daemon::check_lease_queue(const Connection& connection) const {
  size_t all = 0, of_user = 0;
  for (const Connection& other : connections_) {
    if (other.lease_obstacle.empty()) continue;
    ++all;
    of_user += same_user(*other.identity, *connection.identity);
  }
  if (all < admission_.most_waiting() && of_user < admission_.most_waiting_of_user()) return {};
  return Status(Code::kUnavailable, std::to_string(all) +
                                        " clients wait already for leases to end, " +
                                        std::to_string(of_user) +
                                        " of them of this user: try again when there are fewer");
}

// Among the clients that wait for leases of the same devices to end, from 1.
uint32_t Daemon::lease_place(const Connection& connection) const {
  uint32_t place = 1;
  const std::vector<uint32_t>& devices = connection.hello.devices;
  for (const Connection& earlier : connections_) {
    if (&earlier == &connection) break;
    const std::vector<uint32_t>& others = earlier.hello.devices;
    place += !earlier.lease_obstacle.empty() &&
             std::find_first_of(others.begin(), others.end(), devices.begin(), devices.end()) !=
                 others.end();
  }
  return place;
}

Result<bool> Daemon::take_lease_request(Connection& connection,
                                        const std::vector<std::byte>& body) {
  RCUDA_RETURN_IF_ERROR(admit(connection, wire::MessageType::kLeaseRequest));
  Result<wire::LeaseRequest> request = wire::decode<wire::LeaseRequest>(body);
  if (!request.ok()) return request.status();
  RCUDA_RETURN_IF_ERROR(check_request(*request));
  if (request->operation != LeaseOperation::kList && !gate_.is_operator(*connection.identity)) {
    return Status(Code::kDenied,
                  "user " + connection.identity->user +
                      " may not lease devices of this server: its own user and root may, and those "
                      "that its setting operators names (RCUDA_SERVER_OPERATORS)");
  }
  connection.lease_request = std::move(request).value();
  connection.deadline = Clock::now() + kLongestLookUp;
  return answer_lease_request(connection);
}

Result<bool> Daemon::answer_lease_request(Connection& connection) {
  wire::LeaseAnswer answer;
  switch (connection.lease_request->operation) {
    case LeaseOperation::kTake: {
      const Result<bool> lent = lend(connection, &answer);
      if (!lent.ok() || !*lent) return lent;
      break;
    }
    case LeaseOperation::kExtend:
    case LeaseOperation::kRevoke:
      RCUDA_RETURN_IF_ERROR(change_lease(connection, &answer));
      break;
    case LeaseOperation::kList:
      list_leases(connection, &answer);
      break;
  }
  return send_answer(connection, wire::MessageType::kLeaseAnswer, wire::encode(answer));
}

Result<bool> Daemon::lend(const Connection& connection, wire::LeaseAnswer* answer) {
  const wire::LeaseRequest& request = *connection.lease_request;
  Leases::Wish wish;
  if (!request.user.empty()) {
    const AccountKey key = account_key(request.user);
    const std::optional<Result<Account>> account = gate_.account(key, Clock::now());
    if (!account) return false;
    const uid_t* const number = std::get_if<uid_t>(&key);
    // A number needs no account. A server that is not root also serves users whom its machine does
    // not know, by their tokens.
    const bool unknown =
        account->status().code() == Code::kNotFound && (number || ::geteuid() != 0);
    if (!account->ok() && !unknown) return account->status();
    wish.user = unknown ? request.user : (*account)->user;
    if (!unknown) wish.uid = (*account)->uid;
    if (unknown && number) wish.uid = *number;
  }
  wish.id = request.id;
  wish.job = request.job;
  wish.creator = creator_of(*connection.identity);
  wish.devices = request.devices;
  wish.count = request.count;
  wish.exclusive = !request.shared;
  wish.until = end_after(request.seconds);
  const std::vector<uint32_t> offered = pool_->offer().ordinals();
  if (wish.devices.empty() && offered.empty() && pool_->starting() != 0) return false;
  const std::vector<Leases::Use> uses = pool_->uses();
  const Result<Leases::Taken> taken = leases_.take(wish, offered, uses, wall_clock());
  if (!taken.ok()) return taken.status();
  if (taken->is_new) {
    // A lease that a restart would forget is none.
    if (const Status saved = save_leases(); !saved.ok()) {
      (void)leases_.revoke(taken->lease.id, {});
      return Status(saved).with_context("the lease cannot be kept");
    }
    note_lease("taken", taken->lease, connection.identity);
  }
  answer->secret = taken->lease.secret;
  answer->leases.push_back(describe(taken->lease, uses, *pool_));
  return true;
}

Status Daemon::change_lease(const Connection& connection, wire::LeaseAnswer* answer) {
  const wire::LeaseRequest& request = *connection.lease_request;
  if (request.operation == LeaseOperation::kExtend) {
    const Result<Lease> lease = leases_.extend(request.id, request.job, end_after(request.seconds));
    if (!lease.ok()) return lease.status();
    note_lease("extended", *lease, connection.identity);
    answer->leases.push_back(describe(*lease, pool_->uses(), *pool_));
    return save_leases();
  }
  const std::optional<Lease> lease = leases_.revoke(request.id, request.job);
  if (!lease) {
    // An epilog may run twice, or after the lease has expired.
    answer->message =
        "there is no lease " + (request.id.empty() ? "of " + request.job : request.id);
    return save_leases();  // the first time may have failed
  }
  note_lease("revoked", *lease, connection.identity);
  answer->leases.push_back(describe(*lease, pool_->uses(), *pool_));
  pool_->end_leased(lease->id, "the lease " + text_of(*lease) + " was revoked");
  return save_leases();
}

// All leases for an operator, and for others their own.
void Daemon::list_leases(const Connection& connection, wire::LeaseAnswer* answer) const {
  const Identity& who = *connection.identity;
  const std::string& job = connection.lease_request->job;
  const bool all = gate_.is_operator(who);
  const std::vector<Leases::Use> uses = pool_->uses();
  const auto shown = [&](const Lease& lease) {
    return (job.empty() || lease.job == job) &&
           (all || (!lease.user.empty() && is_for(lease, who)));
  };
  for (const Lease* lease : leases_.page(connection.lease_request->id, shown)) {
    answer->leases.push_back(describe(*lease, uses, *pool_));
  }
}

}  // namespace rcuda::server
