#include "server/daemon/connection/connection.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/reach/same_host.h"
#include "server/sandbox/nobody.h"

namespace rcuda::server {
namespace {

// How long a client may take to read a long answer.
constexpr auto kReadsAnswer = std::chrono::seconds(5);

}  // namespace

Connection::Connection(const ConnectionServices& services, Accepted accepted, Entrance entrance)
    : services_(services),
      deadline_(Clock::now() + services.settings.handshake_timeout.get()),
      introduce_by_(deadline_),
      socket_(std::move(accepted.socket)),
      name_(std::move(accepted.peer)),
      origin_(std::move(accepted.origin)),
      ends_(accepted.connection),
      local_(entrance != Entrance::kNetwork) {
  RCUDA_DEBUG("%s connected", name_.c_str());
  const Status status = local_ ? recognise(entrance) : Status();
  if (!status.ok()) refuse(status);
}

Connection::~Connection() {
  if (proof_) services_.authenticator.forget(*proof_);
  if (closer_) closer_->close(user_, socket_.release());
}

// Identifies a local client. The user ids of a container are those of this machine, but root of a
// container is not root of this machine, and the container's processes choose their groups. So, for
// a client in a container, the server uses the user's account on this machine, as for a client of
// another machine. The account may have to be looked up.
Status Connection::recognise(Entrance entrance) {
  RCUDA_ASSIGN_OR_RETURN(Identity identity, identity_of_local(socket_.fd()));
  user_ = *identity.uid;
  if (services_.closer.started()) closer_ = &services_.closer;
  if (entrance == Entrance::kContainers) {
    proof_ = Proof{.method = kContainer, .account = user_};
    // Root of a container can act as any number of users, so all containers are one origin.
    origin_ = "containers";
    user_ = kNobody;  // for the closer, all containers are one user
    enter(State::kHeld, Clock::now() + kLongestExamination);
    return {};
  }
  identity_ = std::move(identity);
  (void)find_account();  // begins the look-up
  // A worker that runs as this user may connect here to look up an export (runs_as()), even if the
  // server serves the user itself only with a token.
  if (is_served() || services_.pool.runs_as(user_)) return {};
  if (find_account()) return not_served();
  is_refused_ = true;
  report_at_ = Clock::time_point::max();
  enter(State::kNaming, Clock::now() + kLongestWaitForName);
  return {};
}

Status Connection::not_served() {
  (void)find_account();
  const bool has_name = identity_->user != user_text(user_);
  return wire::not_served(
      services_.listener.port, services_.authenticator.own_user(),
      has_name ? identity_->user + " (" + user_text(user_) + ")" : identity_->user);
}

bool Connection::is_served() const {
  return services_.authenticator.served().contains(*identity_->uid, identity_->gid,
                                                   identity_->groups);
}

bool Connection::is_in_container() const {
  return proof_ && std::string_view(proof_->method) == kContainer;
}

void Connection::enter(State state, Clock::time_point deadline) {
  assert(may_follow(state_, state));
  RCUDA_DEBUG("%s: %s -> %s", name_.c_str(), to_string(state_), to_string(state));
  // The shutdown makes the door stop reading from the client. After the handshake, the door still
  // sends the pending bytes to the client.
  if (state == State::kEnded && passage_ && is_newcomer(state_)) {
    ::shutdown(socket_.fd(), is(State::kHandshake) ? SHUT_RDWR : SHUT_RD);
  }
  state_ = state;
  deadline_ = deadline;
}

short Connection::events() const {
  if (is(State::kAnswering)) return POLLOUT;
  if (look_at_ && !closer_) return 0;  // waits for a door
  return reads(state_) && !look_at_ ? POLLIN : POLLRDHUP;
}

Connection::Clock::time_point Connection::next_deadline() const {
  Clock::time_point next = deadline_;
  if (look_at_ && reads(state_)) next = std::min(next, *look_at_);
  if (waits(state_)) next = std::min(next, report_at_);
  // If the admission has decided after this round's advance(), the next round begins immediately.
  if (is(State::kQueued) && applicant_->is_decided()) next = Clock::now();
  return next;
}

void Connection::handle(short events, Clock::time_point now) {
  if ((events != 0 || looks(now)) && reads(state_)) {
    read();
    // With closer_, the client's bytes stay in the socket. Then read() does not notice that the
    // client has left; only poll() reports it.
    const bool gone = closer_ && (events & (POLLRDHUP | POLLHUP)) != 0;
    if (gone && reads(state_)) enter(State::kEnded);
  } else if (events != 0 && is(State::kAnswering)) {
    if (unsent_.send(channel())) enter(State::kEnded);
  } else if (events != 0) {
    RCUDA_LOG(is_refused_ ? LogLevel::kDebug : LogLevel::kInfo,
              "%s closed its connection while it waited", name_.c_str());
    enter(State::kEnded);
  } else if (is(State::kLeasing)) {
    const Status status = answer_lease_request();
    if (!status.ok()) refuse(status);
  } else if (is(State::kMeasuring)) {
    answer_gpu_query();
  } else if (is(State::kProving)) {
    finish_proof();
  }
  if (!is(State::kEnded) && now >= deadline_) expire();
}

void Connection::expire() {
  switch (state_) {
    case State::kReading:
    case State::kHandshake: {
      const bool logs = identity_ || services_.refusals.logs_stranger();
      RCUDA_LOG(logs ? LogLevel::kWarn : LogLevel::kDebug,
                "%s sent no complete request in time: connection closed", name_.c_str());
      return enter(State::kEnded);
    }
    case State::kHeld:
    case State::kProving:
      return refuse(Status(Code::kTimeout,
                           "the server could not verify the client's user in time: munged or the "
                           "user database of the server's machine does not answer"));
    case State::kLeasing:
      if (services_.pool.offer().ordinals().empty()) {
        return refuse(Status(Code::kUnavailable,
                             "the server has just started and does not know its devices before its "
                             "first worker is ready: try again (rcuda-lease take --wait)"));
      }
      return refuse(Status(Code::kTimeout,
                           "the server could not look up the lease's user in time: the user "
                           "database of the server's machine does not answer"));
    case State::kAnswering:
      RCUDA_WARN("%s does not read the answer to its request: connection closed", name_.c_str());
      return enter(State::kEnded);
    case State::kQueued:
      if (applicant_->is_decided()) return;  // decided at the last moment
      return leave_queue();
    case State::kAdmitted: {
      const Status& failure = services_.pool.last_failure();
      return refuse(failure.ok()
                        ? Status(Code::kTimeout, "no worker became ready in time; try again")
                        : failure);
    }
    case State::kMeasuring:  // answer_gpu_query() and advance() go on without the awaited data
    case State::kNaming:
    case State::kEnded:
      return;
  }
}

void Connection::refuse(const Status& status) {
  services_.refusals.record(name_, identity_, identity_ && (!local_ || is_served()), status);
  drop(status);
}

void Connection::drop(const Status& status) {
  // In the middle of a TLS handshake, or of an answer, a client could not read a Refusal. A Refusal
  // fits any empty socket buffer; a client whose buffer has no room does not get it.
  if (!is(State::kHandshake) && !is(State::kAnswering)) {
    const wire::Refusal refusal{static_cast<uint32_t>(status.code()), status.context()};
    (void)wire::write_message(channel(), wire::MessageType::kRefusal, wire::encode(refusal),
                              Clock::now());
  }
  enter(State::kEnded);
}

Result<UniqueFd> Connection::duplicate_socket() const {
  UniqueFd copy(::fcntl(socket_.fd(), F_DUPFD_CLOEXEC, 3));
  if (!copy) return Status::from_errno(errno, "duplicating the client's socket for a worker");
  return copy;
}

// If the socket has no room for all of the answer, handle() sends the rest later.
void Connection::send_answer(wire::MessageType type, const std::vector<std::byte>& body) {
  std::vector<std::byte> message = wire::message_bytes(type, body);
  if (message.empty()) {
    RCUDA_WARN("an answer of %zu bytes to %s is too long for a message: connection closed",
               body.size(), name_.c_str());
    return enter(State::kEnded);
  }
  unsent_.put(std::move(message));
  enter(State::kAnswering, Clock::now() + kReadsAnswer);
  if (unsent_.send(channel())) enter(State::kEnded);
}

}  // namespace rcuda::server
