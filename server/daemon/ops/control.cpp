// The part of the daemon that operators control: ending a session, and draining the server.
#include <utility>

#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/daemon.h"

namespace rcuda::server {
namespace {

constexpr auto kLongestLookUp = std::chrono::seconds(4);

}  // namespace

Result<bool> Daemon::take_lease_request(Connection& connection,
                                        const std::vector<std::byte>& body) {
  RCUDA_RETURN_IF_ERROR(admit(connection, wire::MessageType::kLeaseRequest));
  Result<wire::LeaseRequest> request = leases_->check(body, *connection.identity);
  if (!request.ok()) return request.status();
  connection.lease_request = std::move(request).value();
  connection.deadline = Clock::now() + kLongestLookUp;
  return answer_lease_request(connection);
}

Result<bool> Daemon::answer_lease_request(Connection& connection) {
  const Result<std::optional<wire::LeaseAnswer>> answer =
      leases_->answer(*connection.lease_request, *connection.identity);
  if (!answer.ok()) return answer.status();
  if (!*answer) return false;
  return send_answer(connection, wire::MessageType::kLeaseAnswer, wire::encode(**answer));
}

Status Daemon::control(Connection& connection, const std::vector<std::byte>& body) {
  const Result<wire::ControlRequest> request = wire::decode<wire::ControlRequest>(body);
  if (!request.ok()) return request.status();
  const Identity& who = *connection.identity;
  const bool is_operator = gate_.is_operator(who);
  if (request->operation == wire::ControlOperation::kEnd) {
    const auto mine = [&](const Identity& owner) { return is_operator || same_user(owner, who); };
    RCUDA_RETURN_IF_ERROR(
        pool_->end_session(request->worker_pid, mine, who.user + " ended the session"));
    audit_.control("end", who, request->worker_pid);
  } else if (!is_operator) {
    return Status(Code::kDenied, "only an operator may drain this server (its setting operators)");
  } else if (request->operation != wire::ControlOperation::kAsk) {
    set_draining(request->operation == wire::ControlOperation::kDrain, who,
                 "as " + who.user + " asked");
  }
  const wire::ControlAnswer answer{static_cast<uint32_t>(pool_->sessions()), draining_};
  (void)wire::write_message(connection.socket, wire::MessageType::kControlAnswer,
                            wire::encode(answer), Clock::now());
  return {};
}

void Daemon::set_draining(bool draining, const std::optional<Identity>& by,
                          const std::string& why) {
  if (std::exchange(draining_, draining) == draining) return;
  audit_.control(draining ? "drain" : "resume", by, {});
  if (draining) {
    RCUDA_INFO("drained, %s: no new sessions; %zu are under way", why.c_str(), pool_->sessions());
  } else {
    drain_until_.reset();
    RCUDA_INFO("no longer drained, %s", why.c_str());
  }
}

Status Daemon::check_draining() const {
  if (!draining_) return {};
  return Status(Code::kUnavailable,
                "the server is drained: it takes no new sessions and stops when the last one has "
                "ended; name another server, or let an operator say rcuda-smi resume");
}

// The first signal drains the server for as long as the settings say; the second one stops it.
bool Daemon::takes_signal() {
  if (settings_.drain_timeout.get().count() == 0 || drain_until_) return false;
  signalfd_siginfo signal;
  (void)!::read(stop_, &signal, sizeof signal);
  drain_until_ = Clock::now() + settings_.drain_timeout.get();
  set_draining(true, {}, "as a signal says");
  return true;
}

bool Daemon::is_drained() const {
  return draining_ && (pool_->sessions() == 0 || (drain_until_ && Clock::now() >= *drain_until_));
}

}  // namespace rcuda::server
