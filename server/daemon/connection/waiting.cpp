// A client that waits for a session: for its user's name, in the queue, and for a worker.
#include <algorithm>

#include <poll.h>

#include "common/base/log.h"
#include "server/daemon/connection/connection.h"

namespace rcuda::server {
namespace {

bool has_ended(int stream) {
  pollfd item{stream, 0, 0};
  return ::poll(&item, 1, 0) != 0;
}

}  // namespace

WorkerPool::Waiting Connection::waiting() const {
  const SessionLimits& limits = permit_->limits();
  return {&hello_, limits.sm_percent, limits.priority,
          identity_->lease.empty() || identity_->lease_oversubscribes};
}

void Connection::advance() {
  const Status status = try_advance();
  if (status.ok()) return;
  // During a drain, a program that waits repeats its request. Its refusals are not recorded: they
  // would fill the log and the audit.
  if (hello_.wait_ms == 0 || services_.control.check_draining(hello_.devices).ok()) {
    return refuse(status);
  }
  RCUDA_DEBUG("%s is refused for now, and repeats its request later: %s", name_.c_str(),
              status.message().c_str());
  drop(status);
}

Status Connection::try_advance() {
  if (is_refused_) return find_account() ? not_served() : Status();
  if (request_) return find_account() ? carry_out() : Status();
  RCUDA_RETURN_IF_ERROR(services_.control.check_draining(hello_.devices));
  if (!services_.authenticator.serves(*identity_)) {
    return {Code::kDenied, "the server does not serve user " + identity_->user +
                               " any more: its setting \"users\" changed while the program waited"};
  }
  if (is(State::kNaming) && find_account()) RCUDA_RETURN_IF_ERROR(apply());
  if (is(State::kQueued) && applicant_->is_decided()) {
    RCUDA_ASSIGN_OR_RETURN(permit_, applicant_->take());
    applicant_.reset();
    enter(State::kAdmitted, Clock::now() + services_.settings.start_timeout.get());
  }
  return is(State::kAdmitted) ? assign() : Status();
}

// Whether the user's name and groups are known, or their look-up has run out of time.
bool Connection::find_account() {
  if (!identity_->uid || identity_->user != user_text(*identity_->uid)) return true;
  const Clock::time_point now = Clock::now();
  std::optional<Account> account = services_.authenticator.account_of(*identity_->uid, now);
  if (!account) return now >= deadline_;
  identity_->user = std::move(account->user);
  if (local_) name_ = identity_->from + " of " + identity_->user;
  identity_->account_groups = std::move(account->groups);
  return true;
}

Status Connection::apply() {
  const std::chrono::milliseconds wait(hello_.wait_ms);
  RCUDA_ASSIGN_OR_RETURN(applicant_,
                         services_.admission.apply(*identity_, hello_.devices, wait.count() != 0));
  const Clock::time_point now = Clock::now();
  enter(State::kQueued, std::max(waits_since_ + wait, now + kNoticesExit));
  return {};
}

// Passes the client to a worker, if a suitable worker is ready.
Status Connection::assign() {
  WorkerPool& pool = services_.pool;
  if (!pool.has_worker_for(waiting())) return pool.lasting_failure(waiting());
  // A lease that began or ended while the client waited may exclude these devices. If so, the
  // client applies again.
  if (!services_.admission.check_devices(hello_.devices, identity_->lease).ok()) {
    permit_.reset();
    return apply();
  }
  // Without its door, the client will not learn that it has a worker.
  if (passage_ && has_ended(channel().fd())) {
    return {Code::kUnavailable,
            "the server's process that speaks TLS with the client has ended: try again"};
  }
  std::optional<tls::Key> key;
  if (passage_) key = session_key_;
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, duplicate_socket());
  RCUDA_ASSIGN_OR_RETURN(const bool assigned,
                         pool.assign(hello_, *identity_, key, peeked_, &socket, &permit_));
  if (!assigned) return {};
  // The worker waits for the client's first bytes, and the client waits for this message. If the
  // client does not read this message, the worker stops waiting for the client after a time.
  if (passage_)
    (void)wire::write_message(channel(), wire::MessageType::kAssigned, {}, Clock::now());
  enter(State::kEnded);
  return {};
}

// Called when the client has waited for as long as it wanted.
void Connection::leave_queue() {
  const Clock::time_point now = Clock::now();
  const bool ends_soon = now < waits_since_ + services_.settings.stop_timeout.get();
  if (hello_.wait_ms == 0 && ends_soon && applicant_->fits_after_ends()) {
    deadline_ = now + kNoticesExit;
    return;
  }
  refuse(applicant_->timeout(std::chrono::milliseconds(hello_.wait_ms)));
}

void Connection::report_queue(Clock::time_point now) {
  if (!waits(state_) || now < report_at_) return;
  wire::Queued queued;
  if (applicant_ && hello_.wait_ms != 0) {
    queued.place = static_cast<uint32_t>(applicant_->place());
    queued.reason = applicant_->reason() + applicant_->room_hint();
  }
  report_at_ = now + wire::kQueuedInterval;
  const Status sent =
      wire::write_message(channel(), wire::MessageType::kQueued, wire::encode(queued), now);
  if (sent.ok()) return;
  // The client has gone, or has not read for so long that its socket is full. It may have received
  // a part of the message.
  RCUDA_WARN("%s has left, or stopped reading; removed from the queue: %s", name_.c_str(),
             sent.message().c_str());
  enter(State::kEnded);
}

}  // namespace rcuda::server
