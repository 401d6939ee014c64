// The part of the daemon that reads what a client says before it has a worker.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/messages/export_messages.h"
#include "common/reach/protocol_hash.h"
#include "common/reach/same_host.h"
#include "common/transport/media.h"
#include "server/addresses/address_window.h"
#include "server/daemon/daemon.h"
#include "server/worker/device_set.h"

namespace rcuda::server {
namespace {

using wire::MessageType;

// A real Hello has a few hundred bytes, and it is passed to a worker in one packet.
constexpr uint32_t kMaxHelloBytes = 64u << 10;
// If the name service takes longer, a session begins without the name of its user; and with limits
// of groups, with those of the groups that its process is in.
constexpr auto kLongestWaitForName = std::chrono::milliseconds(100);
constexpr auto kLongestWaitForGroups = Daemon::kLongestExamination;

// How soon the daemon looks again for the rest of a message whose bytes stay in the socket.
constexpr auto kLookAgain = std::chrono::milliseconds(10);

// The user that has no files, on every Linux.
constexpr uid_t kNobody = 65534;

bool begins_with_tls(const Socket& client) {
  std::byte first{};
  return ::recv(client.fd(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && tls::looks_like_tls(first);
}

}  // namespace

bool Daemon::read(Connection& connection) {
  if (!connection.local && !connection.tls && connection.received.empty() && !connection.identity &&
      begins_with_tls(connection.socket)) {
    return begin_tls(connection);
  }
  if (connection.tls && !connection.shaken) {
    connection.shakes = true;
    return true;
  }

  wire::MessageHeader header;
  for (;;) {
    size_t wanted = sizeof header;
    if (connection.received.size() >= sizeof header) {
      std::memcpy(&header, connection.received.data(), sizeof header);
      Status status = wire::check_header(header);
      if (status.ok() && header.body_bytes > kMaxHelloBytes) {
        status = Status(Code::kProtocol, "the introduction is too long");
      }
      if (!status.ok()) {
        refuse(connection, status);
        return false;
      }
      wanted += header.body_bytes;
    }
    if (connection.received.size() == wanted) {
      const std::vector<std::byte> received = std::exchange(connection.received, {});
      if (connection.closer) connection.peeked += received.size();
      connection.look_at.reset();
      return introduce(connection, header.type, {received.begin() + sizeof header, received.end()});
    }
    const size_t have = connection.received.size();
    connection.received.resize(wanted);
    const ssize_t got = receive(connection, connection.received.data() + have, wanted - have);
    connection.received.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0) continue;
    return got == 0;
  }
}

ssize_t Daemon::receive(Connection& connection, std::byte* data, size_t bytes) {
  const size_t have = connection.received.size() - bytes;
  if (connection.closer) {
    const Result<size_t> peeked =
        peek(connection.socket.fd(), connection.peeked + have, data, bytes);
    if (!peeked.ok()) {
      refuse(connection, peeked.status());
      return -1;
    }
    if (*peeked != 0) return static_cast<ssize_t>(*peeked);
    connection.look_at = Clock::now() + kLookAgain;
    return 0;
  }
  const ssize_t got = connection.socket.recv(data, bytes, MSG_DONTWAIT);
  if (got > 0) return got;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  // Port scanners and health checks connect and leave without sending anything.
  const bool told = have != 0 && (connection.identity || tells_of_stranger());
  RCUDA_LOG(told ? LogLevel::kWarn : LogLevel::kDebug, "%s left during the handshake",
            connection.name.c_str());
  return -1;
}

bool Daemon::introduce(Connection& connection, MessageType type,
                       const std::vector<std::byte>& body) {
  if (type == MessageType::kExportQuery) return look_up(connection, body);
  Status status;
  if (connection.local && !is_served(*connection.identity)) {
    refuse(connection, wire::not_served(listener_.port, ::geteuid(), *connection.identity->uid));
    return false;
  }
  if (type == wire::MessageType::kGpuQuery) {
    status = admit(connection, type);
    if (!status.ok()) {
      refuse(connection, status);
      return false;
    }
    take_gpu_query(connection);
    return !answer_gpu_query(connection);
  }
  switch (type) {
    case MessageType::kTicketQuery:
      give_ticket(connection, body);
      return false;
    case MessageType::kAttach:
    case MessageType::kPeerHello:
      return pass_on(connection, type, body);
    case MessageType::kTicket:
      status = take_ticket(connection, body);
      break;
    case MessageType::kAuthenticate:
      status = examine(connection, body);
      break;
    case MessageType::kStatusQuery:
      status = admit(connection, type);
      if (!status.ok()) break;
      return !report(connection);
    case MessageType::kLeaseRequest: {
      const Result<bool> answered = take_lease_request(connection, body);
      if (answered.ok()) return !*answered;
      status = answered.status();
      break;
    }
    case MessageType::kControlRequest:
      status = admit(connection, type);
      if (status.ok()) status = control(connection, body);
      if (!status.ok()) break;
      return false;
    case MessageType::kHello:
      status = admit(connection, type);
      if (status.ok()) status = take_hello(connection, body);
      break;
    default:
      status = Status(Code::kProtocol, "the client began with the wrong message");
  }
  if (!status.ok()) refuse(connection, status);
  return status.ok();
}

// A further socket of a session. It names a session by something that only the session knows, so
// the client need not identify itself again. If the session is encrypted, the worker demands its
// key next.
bool Daemon::pass_on(Connection& connection, MessageType type, const std::vector<std::byte>& body) {
  Status status;
  UniqueFd socket(::fcntl(connection.socket.fd(), F_DUPFD_CLOEXEC, 3));
  if (!socket) {
    status = Status::from_errno(errno, "passing the connection to a worker");
  } else if (connection.tls) {
    status = Status(Code::kProtocol, "a further socket of a session begins without TLS");
  } else if (type == MessageType::kAttach) {
    const Result<wire::Attach> attach = wire::decode<wire::Attach>(body);
    if (!attach.ok()) {
      status = attach.status();
    } else if (!pool_->attach(*attach, connection.peeked, std::move(socket))) {
      RCUDA_LOG(tells_of_stranger() ? LogLevel::kWarn : LogLevel::kDebug,
                "%s wants to join a session that does not exist, or a second time",
                connection.name.c_str());
    }
  } else {
    const Result<wire::PeerHello> hello = wire::decode<wire::PeerHello>(body);
    if (!hello.ok() || !pool_->call_on(*hello, connection.peeked, &socket)) {
      status = hello.ok() ? Status(Code::kUnavailable,
                                   "no worker of that session is here: it has ended, or the "
                                   "address is another server's")
                          : hello.status();
    }
  }
  if (!status.ok()) refuse(connection, status);
  return false;
}

// A worker asks for what another one has exported. That worker answers.
bool Daemon::look_up(Connection& connection, const std::vector<std::byte>& body) {
  const Result<wire::ExportQuery> query = wire::decode<wire::ExportQuery>(body);
  UniqueFd socket(::fcntl(connection.socket.fd(), F_DUPFD_CLOEXEC, 3));
  if (!connection.local || connection.identity->method == kContainer || !query.ok()) {
    refuse(connection,
           query.ok()
               ? Status(Code::kProtocol, "exports are looked up over the server's own local socket")
               : query.status());
  } else if (!socket) {
    refuse(connection, Status::from_errno(errno, "passing the connection to a worker"));
  } else if (!pool_->look_up(*query, *connection.identity->uid, connection.peeked, &socket)) {
    // Names outlive their sessions, so nobody is to be warned.
    RCUDA_DEBUG("%s asks for an export that does not exist", connection.name.c_str());
  }
  return false;
}

void Daemon::give_ticket(Connection& connection, const std::vector<std::byte>& body) {
  if (!connection.local) {
    return refuse(connection,
                  Status(Code::kProtocol, "tickets are given over the local socket only"));
  }
  const Result<wire::TicketQuery> query = wire::decode<wire::TicketQuery>(body);
  if (!query.ok()) return refuse(connection, query.status());
  // The client takes whoever gets its ticket for this server.
  if (!listener_.is_at(query->server)) {
    return refuse(connection, Status(Code::kDenied,
                                     "this server does not listen at the address to which the "
                                     "client has connected, but only at " +
                                         listener_.address + ": name that one"));
  }
  const Result<wire::Ticket> ticket = tickets_.issue(*connection.identity, *query, Clock::now());
  if (!ticket.ok()) return refuse(connection, ticket.status());
  (void)wire::write_message(connection.socket, MessageType::kTicket, wire::encode(*ticket),
                            Clock::now());
}

Status Daemon::take_ticket(Connection& connection, const std::vector<std::byte>& body) {
  const Result<wire::Ticket> ticket = wire::decode<wire::Ticket>(body);
  if (!ticket.ok()) return ticket.status();
  if (connection.local || connection.tls) {
    return Status(Code::kProtocol, "tickets are for TCP connections without TLS");
  }
  connection.identity = tickets_.redeem(*ticket, connection.ends, Clock::now());
  if (!connection.identity) {
    return Status(Code::kDenied,
                  "its ticket is unknown, used, expired or for another connection: try again, and "
                  "connect to the server itself, not through a tunnel or a proxy");
  }
  connection.identity->from = connection.name;
  connection.name += " of " + connection.identity->user;
  return {};
}

Status Daemon::examine(Connection& connection, const std::vector<std::byte>& body) {
  if (connection.identity || !connection.tls) {
    return Status(Code::kProtocol, "the client identifies itself at the wrong time");
  }
  const Result<wire::Authenticate> message = wire::decode<wire::Authenticate>(body);
  if (!message.ok()) return message.status();
  Result<Proof> proof = gate_.examine(*message, *connection.tls);
  if (!proof.ok()) return proof.status();
  connection.proof = std::move(proof).value();
  connection.proof_by = Clock::now() + kLongestExamination;
  return finish_proof(connection);
}

// Looks whether the client's identity is known by now. If so, tells the client, which may go on.
Status Daemon::finish_proof(Connection& connection) {
  std::optional<Result<Identity>> found;
  if (!awaits_lookups(connection)) {
    found = gate_.identify(*connection.proof, connection.name, Clock::now());
    connection.looks_up = !found && std::string_view(connection.proof->method) == kContainer;
  }
  if (!found && Clock::now() < connection.proof_by) return {};
  if (!found) {
    return Status(Code::kTimeout,
                  "the server could not find out in time who the client is: munged or the user "
                  "database of its machine does not answer");
  }
  const wire::Authenticated answer{std::move(connection.proof->answer)};
  connection.proof.reset();
  if (!found->ok()) return found->status();
  connection.identity = std::move(*found).value();
  connection.name += " of " + connection.identity->user;
  if (connection.local) return {};
  return wire::write_message(connection.socket, MessageType::kAuthenticated, wire::encode(answer),
                             Clock::now());
}

// Whether the client may send a message of this type, because it is identified or need not be. If
// so, it has an identity afterwards.
Status Daemon::admit(Connection& connection, MessageType type) const {
  if (connection.identity) return check_role(*connection.identity, type);
  if (connection.tls) {
    return Status(Code::kProtocol, "the client did not identify itself first");
  }
  const Result<bool> of_this_machine = wire::any_on_this_machine({&connection.ends.client, 1});
  if (!of_this_machine.ok()) return of_this_machine.status();
  if (gate_.allows_anybody()) {
    // A stranger never runs as root.
    connection.identity =
        Identity{::geteuid(), ::getegid(), "unknown", {}, "insecure", connection.name};
    if (::geteuid() == 0) connection.identity->uid = connection.identity->gid = kNobody;
    return {};
  }
  if (!*of_this_machine) {
    return Status(Code::kDenied,
                  "clients of other machines identify themselves, and this one did not: leave "
                  "RCUDA_SECURITY at auto, and see docs/security.md for the ways");
  }
  return Status(Code::kDenied,
                "it connects by TCP from the server's own machine and brings no ticket from the "
                "local socket @rcuda-" +
                    std::to_string(listener_.port) +
                    ", which would prove its user: connect to the server itself, not through a "
                    "tunnel or a proxy, and from the server's network namespace; or use a token");
}

Status Daemon::take_hello(Connection& connection, const std::vector<std::byte>& body) {
  // The rest may have another form.
  const Result<uint64_t> protocol = wire::protocol_hash_of_hello(body);
  if (!protocol.ok()) return protocol.status();
  if (*protocol != wire::protocol_hash()) {
    return Status(Code::kProtocol,
                  "client and server are of versions of rcuda that do not understand each other: "
                  "install the same build on both");
  }
  Result<wire::Hello> hello = wire::decode<wire::Hello>(body);
  if (!hello.ok()) return hello.status();
  RCUDA_RETURN_IF_ERROR(check(*hello));
  RCUDA_RETURN_IF_ERROR(WorkerPool::check_user(*connection.identity));
  RCUDA_RETURN_IF_ERROR(leases_->unlock(&*hello, &*connection.identity));
  connection.hello = std::move(hello).value();
  connection.waits = true;
  connection.waits_since = connection.tell_at = Clock::now();
  connection.account_by = connection.waits_since;
  if (admission_.limits_groups()) {
    connection.account_by += kLongestWaitForGroups;
  } else {
    connection.account_by += kLongestWaitForName;
  }
  connection.deadline = Clock::time_point::max();
  return {};
}

Status Daemon::check(const wire::Hello& hello) const {
  if (!transport::find_medium(hello.medium) && !transport::find_medium(hello.fallback)) {
    return Status(Code::kProtocol,
                  "this server does not know the transport that the client chose;"
                  " it takes " +
                      transport::medium_names());
  }
  if (hello.devices.empty()) return Status(Code::kInvalidArgument, "no device was asked for");
  const std::vector<uint32_t> offered = pool_->offer().ordinals();
  for (uint32_t ordinal : hello.devices) {
    if (!offered.empty() && std::find(offered.begin(), offered.end(), ordinal) == offered.end()) {
      return Status(Code::kNotFound, "the server does not offer device " + std::to_string(ordinal) +
                                         "; it offers " + list_of(offered));
    }
  }
  for (uint32_t base = 0; base < wire::kBaseCount; ++base) {
    if (!is_taken(hello, Base{base}.range())) return {};
  }
  return Status(Code::kUnavailable,
                "the program and its other servers use all " + std::to_string(wire::kBaseCount) +
                    " ranges of addresses in which workers start: name fewer servers in "
                    "RCUDA_DEVICES");
}

}  // namespace rcuda::server
