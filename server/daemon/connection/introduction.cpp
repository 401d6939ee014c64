// The messages of a client that has no worker yet.
#include <algorithm>
#include <cerrno>

#include <sys/socket.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/version.h"
#include "common/messages/export_messages.h"
#include "common/messages/server_status.h"
#include "common/reach/protocol_hash.h"
#include "common/reach/same_host.h"
#include "common/tls/handshake.h"
#include "common/transport/media.h"
#include "server/addresses/address_window.h"
#include "server/daemon/admission/leases.h"
#include "server/daemon/connection/connection.h"
#include "server/daemon/ops/gpu_reports.h"
#include "server/sandbox/nobody.h"
#include "server/worker/device_set.h"

namespace rcuda::server {
namespace {

using wire::MessageType;

// How long a connection is spared after it has begun TLS, and after it has finished the handshake.
// Otherwise a flood of connections from the client's own address would replace this connection: a
// flood replaces all newcomers in some 100 ms.
constexpr auto kHandshakeSpared = std::chrono::milliseconds(500);
constexpr auto kIdentifiedSpared = std::chrono::seconds(1);
// If the name service takes longer, only the groups of the client's process count for the limits of
// its session.
constexpr auto kLongestWaitForGroups = Connection::kLongestExamination;
constexpr auto kLongestLookUp = std::chrono::seconds(4);  // of the user of a lease

// kLookAgain: the pause before the daemon reads again, while bytes of an incomplete message stay in
// the socket. kAskAgain: the pause before the daemon asks for a door again. It is longer than
// kLookAgain, because up to 2048 clients may wait for a door.
constexpr auto kLookAgain = std::chrono::milliseconds(10);
constexpr auto kAskAgain = std::chrono::milliseconds(20);

}  // namespace

bool Connection::begins_tls() const {
  if (local_ || passage_ || received_.size() != 0 || identity_) return false;
  std::byte first{};
  return ::recv(socket_.fd(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
         tls::looks_like_tls(first);
}

bool Connection::is_stranger() const { return (passage_ && !identity_) || begins_tls(); }

void Connection::read() {
  if (is(State::kHandshake) || begins_tls()) {
    const Status status = is(State::kHandshake) ? finish_tls() : begin_tls();
    return status.ok() ? void() : refuse(status);
  }
  const Result<bool> whole =
      received_.add([this](std::byte* data, size_t bytes) { return receive(data, bytes); });
  if (!whole.ok()) return refuse(whole.status());
  if (!*whole) return;
  if (closer_) peeked_ += received_.size();
  look_at_.reset();
  const auto [type, body] = received_.take();
  const Status status = handle_message(type, body);
  if (!status.ok()) refuse(status);
}

Status Connection::begin_tls() {
  if (!services_.authenticator.speaks_tls()) {
    return {Code::kUnsupported,
            "this server has no certificate, so it cannot speak TLS: start it with --listen and an "
            "address, or set RCUDA_SERVER_CERTIFICATE"};
  }
  look_at_.reset();
  Result<Doors::Passage> opened = services_.doors.open(origin_, socket_.fd());
  if (opened.status().code() == Code::kTimeout) {
    look_at_ = Clock::now() + kAskAgain;
    return {};
  }
  enter(State::kHandshake, introduce_by_);
  RCUDA_ASSIGN_OR_RETURN(passage_, std::move(opened));
  spared_until_ = Clock::now() + kHandshakeSpared;
  return {};
}

Status Connection::finish_tls() {
  DoorReport report;
  const ssize_t got = channel().recv(&report, sizeof report, MSG_DONTWAIT);
  if (got != sizeof report) {
    return {Code::kUnavailable,
            "the server's process that speaks TLS has closed the connection, or has ended: try "
            "again"};
  }
  report.failure[sizeof report.failure - 1] = '\0';
  // The client has received TLS's own alert, so it needs no Refusal.
  if (report.failure[0]) return {Code::kDenied, printable(report.failure)};
  RCUDA_ASSIGN_OR_RETURN(const wire::Challenge challenge,
                         services_.authenticator.challenge(report.proof, &binding_));
  session_key_ = report.session;
  spared_until_ = Clock::now() + kIdentifiedSpared;
  enter(State::kReading, introduce_by_);
  return wire::write_message(channel(), MessageType::kChallenge, wire::encode(challenge),
                             Clock::now());
}

size_t Connection::receive(std::byte* data, size_t bytes) {
  const size_t have = received_.size() - bytes;
  if (closer_) {
    const Result<size_t> peeked = peek(socket_.fd(), peeked_ + have, data, bytes);
    if (!peeked.ok()) refuse(peeked.status());
    if (!peeked.ok() || *peeked != 0) return peeked.ok() ? *peeked : 0;
    look_at_ = Clock::now() + kLookAgain;
    return 0;
  }
  const ssize_t got = channel().recv(data, bytes, MSG_DONTWAIT);
  if (got > 0) return static_cast<size_t>(got);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  // Port scanners and health checks connect and leave without sending anything, which needs no
  // warning.
  const bool logs = have != 0 && (identity_ || services_.refusals.logs_stranger());
  RCUDA_LOG(logs ? LogLevel::kWarn : LogLevel::kDebug,
            "%s closed its connection before its request was complete", name_.c_str());
  enter(State::kEnded);
  return 0;
}

Status Connection::handle_message(MessageType type, const std::vector<std::byte>& body) {
  if (type == MessageType::kExportQuery) return look_up_export(body);
  if (local_ && !is_served()) {
    return not_served();
  }
  switch (type) {
    case MessageType::kTicketQuery:
      return give_ticket(body);
    case MessageType::kAttach:
    case MessageType::kPeerHello:
      return pass_on(type, body);
    case MessageType::kTicket:
      return take_ticket(body);
    case MessageType::kAuthenticate:
      return take_proof(body);
    case MessageType::kStatusQuery:
    case MessageType::kGpuQuery:
    case MessageType::kLeaseRequest:
    case MessageType::kControlRequest:
    case MessageType::kHello:
      RCUDA_RETURN_IF_ERROR(check_sender(type));
      return take_request(type, body);
    default:
      return Status(Code::kProtocol, "the client began with a message of type " +
                                         std::to_string(static_cast<uint32_t>(type)) +
                                         ", which cannot begin a connection: install the same "
                                         "build of rcuda on client and server");
  }
}

Status Connection::take_request(MessageType type, const std::vector<std::byte>& body) {
  if (type == MessageType::kHello) return take_hello(body);
  if (type == MessageType::kStatusQuery) {
    report_status();
  } else if (type == MessageType::kGpuQuery) {
    services_.pool.find_out();
    asked_at_ = Clock::now();
    enter(State::kMeasuring, asked_at_ + kLongestReading);
    answer_gpu_query();
  } else {
    request_ = {type, body};
    report_at_ = Clock::time_point::max();
    enter(State::kNaming, Clock::now() + kLongestWaitForName);
    if (find_account()) return carry_out();
  }
  return {};
}

// Runs when the user's name is known, because the log, the audit and leases contain it.
Status Connection::carry_out() {
  const auto [type, body] = *std::exchange(request_, std::nullopt);
  if (type == MessageType::kControlRequest) {
    RCUDA_ASSIGN_OR_RETURN(const wire::ControlAnswer answer,
                           services_.control.handle(body, *identity_));
    send_answer(MessageType::kControlAnswer, wire::encode(answer));
    return {};
  }
  RCUDA_ASSIGN_OR_RETURN(lease_request_, services_.leases.check(body, *identity_));
  enter(State::kLeasing, Clock::now() + kLongestLookUp);
  return answer_lease_request();
}

// Passes a connection to the worker of a running session: a further socket of the client (Attach),
// or the socket of another worker of the client (PeerHello). Such a connection needs no identity:
// Attach has a token of the session, and two workers check a token of their client before the first
// copy. If the session is encrypted, the worker also demands a proof of the session's key.
Status Connection::pass_on(MessageType type, const std::vector<std::byte>& body) {
  if (passage_) {
    return Status(Code::kProtocol,
                  "the client used TLS for a further socket of its session: only the first "
                  "connection uses TLS");
  }
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, duplicate_socket());
  if (type == MessageType::kAttach) {
    RCUDA_ASSIGN_OR_RETURN(const wire::Attach attach, wire::decode<wire::Attach>(body));
    const Status passed = services_.pool.attach(attach, peeked_, std::move(socket));
    if (!passed.ok() && attach.attempt != 0) return passed;
    if (!passed.ok()) {
      RCUDA_LOG(services_.refusals.logs_stranger() ? LogLevel::kWarn : LogLevel::kDebug,
                "%s asks to join a session that does not exist or that it has already joined: "
                "connection closed",
                name_.c_str());
    }
  } else {
    RCUDA_ASSIGN_OR_RETURN(const wire::PeerHello hello, wire::decode<wire::PeerHello>(body));
    if (!services_.pool.pass_on(hello, peeked_, &socket)) {
      return Status(
          hello.attempt == 0 ? Code::kUnavailable : Code::kNotFound,
          "this server does not have that session: the session has ended, or this is the address "
          "of another server");
    }
  }
  enter(State::kEnded);
  return {};
}

// A worker looks up an export of another worker. The other worker answers.
Status Connection::look_up_export(const std::vector<std::byte>& body) {
  if (!local_ || identity_->method == kContainer) {
    return Status(Code::kProtocol,
                  "the client looks up exported memory over the network or from a container: the "
                  "server answers only its own workers");
  }
  RCUDA_ASSIGN_OR_RETURN(const wire::ExportQuery query, wire::decode<wire::ExportQuery>(body));
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, duplicate_socket());
  if (!services_.pool.look_up(query, *identity_->uid, peeked_, &socket)) {
    // Names of exports outlive their sessions, so this is not worth a warning.
    RCUDA_DEBUG("%s asks for an export that does not exist", name_.c_str());
  }
  enter(State::kEnded);
  return {};
}

Status Connection::give_ticket(const std::vector<std::byte>& body) {
  if (!local_) {
    return Status(Code::kProtocol,
                  "the client requested a ticket over TCP: the server issues tickets only "
                  "over its local socket");
  }
  RCUDA_ASSIGN_OR_RETURN(const wire::TicketQuery query, wire::decode<wire::TicketQuery>(body));
  // A client trusts that the process that accepts its ticket is this server. So the client must
  // have connected to an address of this server.
  if (!services_.listener.is_at(query.server)) {
    return Status(Code::kDenied,
                  "this server does not listen at the address to which the client connected: "
                  "connect to " +
                      services_.listener.address + " instead");
  }
  RCUDA_ASSIGN_OR_RETURN(const wire::Ticket ticket,
                         services_.tickets.issue(*identity_, query, Clock::now()));
  send_answer(MessageType::kTicket, wire::encode(ticket));
  return {};
}

Status Connection::take_ticket(const std::vector<std::byte>& body) {
  if (local_ || passage_) {
    return Status(Code::kProtocol,
                  "the client sent a ticket over a local socket or TLS: tickets are "
                  "only for TCP without TLS");
  }
  RCUDA_ASSIGN_OR_RETURN(const wire::Ticket ticket, wire::decode<wire::Ticket>(body));
  identity_ = services_.tickets.redeem(ticket, ends_, Clock::now());
  if (!identity_) {
    return Status(Code::kDenied,
                  "the client's ticket is unknown, used, expired or for another connection: try "
                  "again, and connect to the server itself, not through a tunnel or a proxy");
  }
  identity_->from = name_;
  name_ += " of " + identity_->user;
  return {};
}

Status Connection::take_proof(const std::vector<std::byte>& body) {
  if (identity_ || !passage_) {
    return Status(Code::kProtocol, "the client sent Authenticate twice, or without TLS");
  }
  RCUDA_ASSIGN_OR_RETURN(const wire::Authenticate message, wire::decode<wire::Authenticate>(body));
  RCUDA_ASSIGN_OR_RETURN(proof_, services_.authenticator.examine(message, binding_));
  enter(State::kProving, Clock::now() + kLongestExamination);
  finish_proof();
  return {};
}

void Connection::finish_proof() {
  if (is(State::kHeld)) enter(State::kProving, deadline_);
  std::optional<Result<Identity>> found =
      services_.authenticator.identify(*proof_, name_, Clock::now());
  if (!found) return;
  const wire::Authenticated answer{std::move(proof_->answer)};
  proof_.reset();
  if (!found->ok()) return refuse(found->status());
  identity_ = std::move(*found).value();
  name_ += " of " + identity_->user;
  enter(State::kReading, introduce_by_);
  if (local_) return;
  services_.doors.keep(*passage_);
  const Status sent = wire::write_message(channel(), MessageType::kAuthenticated,
                                          wire::encode(answer), Clock::now());
  if (!sent.ok()) refuse(sent);
}

Status Connection::check_sender(MessageType type) {
  if (identity_) return check_role(*identity_, type);
  if (passage_) {
    return Status(Code::kProtocol, "the client sent a request before it identified its user");
  }
  RCUDA_ASSIGN_OR_RETURN(const bool of_this_machine, wire::any_on_this_machine({&ends_.client, 1}));
  if (services_.authenticator.allows_anybody()) {
    // A stranger never runs as root.
    identity_ = Identity{::geteuid(), ::getegid(), "unknown", {}, "insecure", name_};
    if (::geteuid() == 0) identity_->uid = identity_->gid = kNobody;
    return {};
  }
  if (!of_this_machine) {
    return Status(Code::kDenied,
                  "a client of another machine must identify its user, and this client did not: "
                  "leave RCUDA_SECURITY at auto, and use a token, MUNGE or a certificate "
                  "(docs/security.md)");
  }
  return Status(Code::kDenied,
                "a client that connects by TCP from the server's own machine must identify its "
                "user with a ticket from the local socket @rcuda-" +
                    std::to_string(services_.listener.port) +
                    ", and this client brings no ticket: connect to the server itself, not through "
                    "a tunnel or a proxy, and from the server's network namespace; or use a token");
}

Status Connection::take_hello(const std::vector<std::byte>& body) {
  // If the hash differs, the rest of the Hello may have another layout.
  RCUDA_ASSIGN_OR_RETURN(const uint64_t protocol, wire::protocol_hash_of_hello(body));
  if (protocol != wire::protocol_hash()) {
    return Status(Code::kProtocol,
                  "client and server have incompatible versions of rcuda: "
                  "install the same build on both");
  }
  RCUDA_ASSIGN_OR_RETURN(wire::Hello hello, wire::decode<wire::Hello>(body));
  RCUDA_RETURN_IF_ERROR(check_hello(hello));
  RCUDA_RETURN_IF_ERROR(WorkerPool::check_user(*identity_));
  RCUDA_RETURN_IF_ERROR(services_.leases.unlock(&hello, binding_, &*identity_));
  hello_ = std::move(hello);
  waits_since_ = report_at_ = Clock::now();
  enter(State::kNaming, waits_since_ + (services_.admission.limits_groups()
                                            ? Clock::duration(kLongestWaitForGroups)
                                            : Clock::duration(kLongestWaitForName)));
  return {};
}

Status Connection::check_hello(const wire::Hello& hello) const {
  if (!transport::find_medium(hello.medium) && !transport::find_medium(hello.fallback)) {
    return Status(Code::kProtocol,
                  "this server does not know the transport that the client chose: set "
                  "RCUDA_TRANSPORT to one of " +
                      transport::medium_names());
  }
  if (hello.devices.empty()) {
    return Status(Code::kInvalidArgument,
                  "the client requests no device of this server: name one in RCUDA_DEVICES");
  }
  RCUDA_RETURN_IF_ERROR(check_offered(hello.devices, services_.pool.offer().ordinals()));
  for (uint32_t base = 0; base < wire::kBaseCount; ++base) {
    if (!is_taken(hello, Base{base}.range())) return {};
  }
  return Status(Code::kInvalidArgument,
                "the program and its other servers use all " + std::to_string(wire::kBaseCount) +
                    " ranges of addresses in which workers start: name fewer servers in "
                    "RCUDA_DEVICES");
}

Status Connection::answer_lease_request() {
  RCUDA_ASSIGN_OR_RETURN(const std::optional<wire::LeaseAnswer> answer,
                         services_.leases.answer(lease_request_, *identity_));
  if (answer) send_answer(MessageType::kLeaseAnswer, wire::encode(*answer));
  return {};
}

Viewer Connection::viewer() const {
  return {*identity_, services_.authenticator.sees_all(*identity_)};
}

void Connection::answer_gpu_query() {
  const std::optional<wire::GpuReport> report =
      report_gpus(services_.pool, services_.monitor, services_.admission, viewer(), asked_at_,
                  Clock::now() >= deadline_);
  if (report) send_answer(MessageType::kGpuReport, wire::encode(*report));
}

void Connection::report_status() {
  wire::ServerStatus status;
  status.server = host_name();
  status.version = version();
  status.build = build_id();
  status.clock_ms = static_cast<uint64_t>(
      std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now())
          .time_since_epoch()
          .count());
  status.user = identity_->user;
  status.method = identity_->method;
  if (identity_->roles) status.roles = identity_->roles->text();
  status.max_sessions = static_cast<uint32_t>(services_.settings.max_sessions.get());
  status.waiting = static_cast<uint32_t>(services_.admission.waiting());
  services_.pool.report(&status, viewer());
  services_.control.report(&status);
  services_.leases.report(&status, viewer());
  if (viewer().sees_all) status.totals.refused = services_.refusals.counts();
  send_answer(MessageType::kStatus, wire::encode(status));
}

}  // namespace rcuda::server
