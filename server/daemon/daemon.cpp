#include "server/daemon/daemon.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api_hash.h"
#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/transport/media.h"
#include "common/wire/same_host.h"
#include "server/worker/address_fence.h"
#include "server/worker/device_set.h"

namespace rcuda::server {
namespace {

// The bound on connections that have not introduced themselves, and the bound on connections
// accepted in one round. The second is so small that a new connection is read before enough others
// can replace it.
constexpr rlim_t kMostNewcomers = 512;
constexpr int kMostAcceptedAtOnce = 64;
constexpr auto kCrowdedInterval = std::chrono::seconds(10);
// A session begins without the name of its user if the name service takes longer.
constexpr auto kLongestWaitForName = std::chrono::milliseconds(100);
// A real Hello has a few hundred bytes, and it is passed to a worker in one packet.
constexpr uint32_t kMaxHelloBytes = 64u << 10;

// Leaves descriptors for sessions and workers.
size_t most_newcomers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostNewcomers;
  return std::clamp<rlim_t>(limit.rlim_cur / 4, 1, kMostNewcomers);
}

void send_refusal(int socket, const Status& status) {
  const wire::Refusal refusal{static_cast<uint32_t>(status.code()), status.context()};
  // A Refusal fits any socket buffer; a client that cannot take it at once does not get it.
  (void)wire::write_message(socket, wire::MessageType::kRefusal, wire::encode(refusal),
                            std::chrono::steady_clock::now());
}

}  // namespace

Daemon::Daemon(const Settings& settings, int stop, int ready)
    : settings_(settings),
      stop_(stop),
      ready_(ready),
      most_newcomers_(most_newcomers()),
      tickets_(settings.handshake_timeout.get()) {}

Status Daemon::run() {
  Result<Listener> listener =
      listen_on(settings_.listen.get(), static_cast<uint16_t>(settings_.port.get()));
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  Result<ServedUsers> served = ServedUsers::read(settings_.users.get());
  if (!served.ok()) return served.status();
  served_ = std::move(served).value();
  WorkerPool pool(settings_,
                  static_cast<uint32_t>(std::hash<std::string>()(host_name() + listener_.address)));
  pool_ = &pool;
  for (;;) {
    std::vector<const wire::Hello*> waiting;
    for (const Connection& connection : connections_) {
      if (connection.waits) waiting.push_back(&connection.hello);
    }
    pool.refill(waiting);
    if (!announced_) {
      if (!pool.last_failure().ok()) return pool.last_failure();
      if (pool.ever_ready() || settings_.pool.get() == 0) announce();
    }

    std::vector<pollfd> items = {{stop_, POLLIN, 0}, {accounts_.descriptor(), POLLIN, 0}};
    if (announced_ && Clock::now() >= accept_from_) {
      items.push_back({listener_.tcp.get(), POLLIN, 0});
      items.push_back({listener_.local.get(), POLLIN, 0});
    }
    for (const Connection& connection : connections_) {
      // A client that waits for a worker sends nothing more, but may disconnect.
      items.push_back(
          {connection.socket.get(), static_cast<short>(connection.waits ? POLLRDHUP : POLLIN), 0});
    }
    pool.add_descriptors(&items);
    if (::poll(items.data(), items.size(), poll_timeout_ms()) < 0 && errno != EINTR) {
      return Status::from_errno(errno, "poll");
    }
    if (items[0].revents) break;
    if (items[1].revents) accounts_.acknowledge();
    const auto is_ready = [&](int descriptor) {
      return std::any_of(items.begin(), items.end(), [&](const pollfd& item) {
        return item.fd == descriptor && item.revents != 0;
      });
    };
    pool.handle(items);
    const Clock::time_point now = Clock::now();
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      bool keep = true;
      if (is_ready(connection->socket.get())) {
        if (connection->waits) {
          RCUDA_INFO("%s went away while it waited for a worker", connection->name.c_str());
          keep = false;
        } else {
          keep = read(*connection);
        }
      } else if (now >= connection->deadline) {
        if (connection->waits) {
          refuse(*connection,
                 pool.last_failure().ok()
                     ? Status(Code::kTimeout, "no worker became free in time; try again")
                     : pool.last_failure());
        } else {
          RCUDA_WARN("%s did not introduce itself in time and is dropped",
                     connection->name.c_str());
        }
        keep = false;
      }
      connection = keep ? std::next(connection) : connections_.erase(connection);
    }
    if (is_ready(listener_.tcp.get())) accept_some(listener_.tcp.get(), false);
    if (is_ready(listener_.local.get())) accept_some(listener_.local.get(), true);
    serve_waiting();
    reassure_waiting();
  }
  RCUDA_INFO("stopping: %zu session(s) end", pool.sessions());
  listener_ = {};
  connections_.clear();
  pool.shutdown();
  pool_ = nullptr;
  return {};
}

void Daemon::announce() {
  announced_ = true;
  const WorkerReady& offer = pool_->offer();
  const std::vector<uint32_t> ordinals = offer.ordinals();
  std::string names;
  for (const wire::ServerStatus::Device& device : offer.devices) {
    if (names.find(device.name) == std::string::npos) {
      names += (names.empty() ? "" : ", ") + device.name;
    }
  }
  RCUDA_INFO("serving on %s and @rcuda-%u, of this machine uid %u%s: device%s %s (%s; %s)",
             listener_.address.c_str(), listener_.port, ::geteuid(),
             ::geteuid() == 0 ? "" : " and root", ordinals.size() == 1 ? "" : "s",
             ordinals.empty() ? "as workers find them" : list_of(ordinals).c_str(), names.c_str(),
             offer.driver.c_str());
  if (!listener_.is_loopback) {
    RCUDA_WARN(
        "%s can be reached from other machines, and THEY ARE NOT AUTHENTICATED YET: whoever "
        "connects from one can run code on this machine as this user. Use a private network",
        listener_.address.c_str());
  }
  if (ready_ >= 0) {
    const std::string line = std::to_string(listener_.port) + "\n";
    [[maybe_unused]] ssize_t written = ::write(ready_, line.data(), line.size());
  }
}

int Daemon::poll_timeout_ms() const {
  Clock::time_point next = pool_->next_deadline();
  for (const Connection& connection : connections_) {
    next = std::min(next, connection.waits ? std::min(connection.deadline, connection.tell_at)
                                           : connection.deadline);
  }
  if (accept_from_ > Clock::now()) next = std::min(next, accept_from_);
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 1, 60'000));
}

void Daemon::accept_some(int listening, bool local) {
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    Result<Accepted> accepted = accept_from(listening, local);
    if (!accepted.ok()) {
      // Most likely out of descriptors. Connections in the backlog are accepted when descriptors
      // are free again.
      RCUDA_WARN("%s", accepted.status().message().c_str());
      accept_from_ = Clock::now() + std::chrono::seconds(1);
      return;
    }
    if (!accepted->socket) return;
    greet(std::move(accepted).value(), local);
  }
}

void Daemon::greet(Accepted accepted, bool local) {
  Connection connection;
  connection.socket = std::move(accepted.socket);
  connection.name = std::move(accepted.peer);
  connection.origin = std::move(accepted.origin);
  connection.user = accepted.user;
  connection.ends = accepted.connection;
  connection.local = local;
  connection.deadline = Clock::now() + settings_.handshake_timeout.get();
  RCUDA_DEBUG("%s connected", connection.name.c_str());
  if (local) {
    Result<Identity> identity = identity_of_local(connection.socket.get());
    if (!identity.ok()) return refuse(connection, identity.status());
    connection.identity = std::move(identity).value();
    if (!served_.contains(*connection.user)) {
      return refuse(connection, wire::not_served(listener_.port, ::geteuid(), *connection.user));
    }
    (void)accounts_.find(*connection.user, Clock::now());  // for its name, which is needed later
  }
  if (newcomers() >= most_newcomers_) drop_newcomer();
  connections_.push_back(std::move(connection));
}

size_t Daemon::newcomers() const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& connection) { return !connection.waits; }));
}

// Drops the oldest newcomer of the origin that has the most. There is at least one newcomer.
void Daemon::drop_newcomer() {
  std::map<std::string_view, size_t> origins;
  for (const Connection& connection : connections_) origins[connection.origin] += !connection.waits;
  const auto most =
      std::max_element(origins.begin(), origins.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest =
      std::find_if(connections_.begin(), connections_.end(), [&](const Connection& connection) {
        return !connection.waits && origins[connection.origin] == most->second;
      });
  if (Clock::now() >= say_crowded_from_) {
    RCUDA_WARN(
        "too many connections have not introduced themselves, %zu of %s: the oldest are dropped "
        "for new ones",
        most->second, oldest->origin.c_str());
    say_crowded_from_ = Clock::now() + kCrowdedInterval;
  }
  send_refusal(
      oldest->socket.get(),
      Status(Code::kUnavailable,
             "too many connections to the server have not introduced themselves, and this "
             "is the oldest: try again, and see the server's log for where they come from"));
  connections_.erase(oldest);
}

bool Daemon::read(Connection& connection) {
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
      return introduce(connection, header.type,
                       {connection.received.begin() + sizeof header, connection.received.end()});
    }
    const size_t have = connection.received.size();
    connection.received.resize(wanted);
    const ssize_t got = ::recv(connection.socket.get(), connection.received.data() + have,
                               wanted - have, MSG_DONTWAIT);
    connection.received.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    // Port scanners and health checks connect and leave without sending anything.
    RCUDA_LOG(have == 0 ? LogLevel::kDebug : LogLevel::kWarn, "%s left during the handshake",
              connection.name.c_str());
    return false;
  }
}

bool Daemon::introduce(Connection& connection, wire::MessageType type,
                       const std::vector<std::byte>& body) {
  if (type == wire::MessageType::kTicketQuery) {
    give_ticket(connection, body);
    return false;
  }
  if (type == wire::MessageType::kTicket) return take_ticket(connection, body);
  // kAttach and kPeerHello contain a secret of their session, so admit() does not check these
  // connections.
  if (type == wire::MessageType::kAttach) {
    Result<wire::Attach> attach = wire::decode_attach(body);
    if (!attach.ok()) {
      refuse(connection, attach.status());
    } else if (!pool_->attach(*attach, std::move(connection.socket))) {
      RCUDA_WARN("%s wants to join a session that does not exist", connection.name.c_str());
    }
    return false;
  }
  if (type == wire::MessageType::kPeerHello) {
    Result<wire::PeerHello> hello = wire::decode_peer_hello(body);
    if (!hello.ok()) {
      refuse(connection, hello.status());
    } else if (!pool_->call_on(*hello, &connection.socket)) {
      refuse(connection,
             Status(Code::kUnavailable,
                    "no worker of that session is here: it has ended, or the address is "
                    "another server's"));
    }
    return false;
  }
  if (Status status = admit(connection); !status.ok()) {
    refuse(connection, status);
    return false;
  }
  if (type == wire::MessageType::kStatusQuery) {
    report(connection);
    return false;
  }
  if (type != wire::MessageType::kHello) {
    refuse(connection, Status(Code::kProtocol, "the client began with the wrong message"));
    return false;
  }
  Result<wire::Hello> hello = wire::decode_hello(body);
  Status status = hello.ok() ? check(*hello) : hello.status();
  if (!status.ok()) {
    refuse(connection, status);
    return false;
  }
  connection.hello = std::move(hello).value();
  connection.waits = true;
  connection.received = {};
  connection.tell_at = Clock::now();
  connection.name_by = connection.tell_at + kLongestWaitForName;
  connection.deadline = connection.tell_at + settings_.start_timeout.get();
  return true;
}

void Daemon::give_ticket(Connection& connection, const std::vector<std::byte>& body) {
  if (!connection.local) {
    return refuse(connection,
                  Status(Code::kProtocol, "tickets are given over the local socket only"));
  }
  const Result<wire::TicketQuery> query = wire::decode_ticket_query(body);
  if (!query.ok()) return refuse(connection, query.status());
  const Result<wire::Ticket> ticket = tickets_.issue(*connection.user, *query, Clock::now());
  if (!ticket.ok()) return refuse(connection, ticket.status());
  (void)wire::write_message(connection.socket.get(), wire::MessageType::kTicket,
                            wire::encode(*ticket), Clock::now());
}

// Returns false if the ticket is refused. Otherwise the client sends its introduction next.
bool Daemon::take_ticket(Connection& connection, const std::vector<std::byte>& body) {
  const Result<wire::Ticket> ticket = wire::decode_ticket(body);
  Status status = ticket.status();
  if (status.ok() && connection.local)
    status = Status(Code::kProtocol, "tickets are for TCP connections");
  if (status.ok()) {
    connection.user = tickets_.redeem(*ticket, connection.ends, Clock::now());
    if (!connection.user) {
      status = Status(Code::kDenied,
                      "its ticket is unknown, used, expired or for another connection: try again, "
                      "and connect to the server itself, not through a tunnel or a proxy");
    }
  }
  if (!status.ok()) {
    refuse(connection, status);
    return false;
  }
  connection.name += " of uid " + std::to_string(*connection.user);
  connection.received = {};
  return true;
}

// Admits a client if its user is known or if it is on another machine.
Status Daemon::admit(const Connection& connection) const {
  if (connection.user) return {};
  const Result<bool> of_this_machine = wire::any_on_this_machine({&connection.ends.client, 1});
  if (!of_this_machine.ok()) return of_this_machine.status();
  if (!*of_this_machine) return {};
  return Status(Code::kDenied,
                "it connects by TCP from the server's own machine and brings no ticket from the "
                "local socket @rcuda-" +
                    std::to_string(listener_.port) +
                    ", which would prove its user: connect to the server itself, not through a "
                    "tunnel or a proxy, and from the server's network namespace");
}

// Who the client is, or nothing while the name service is asked.
std::optional<Result<Identity>> Daemon::identify(const Connection& connection) {
  if (!connection.user) {
    // Other machines are not authenticated yet: they run code as the server's user.
    Identity identity{::geteuid(), ::getegid(), "unknown", {}, "insecure", connection.name};
    return Result<Identity>(std::move(identity));
  }
  const Clock::time_point now = Clock::now();
  const std::optional<Result<Account>> account = accounts_.find(*connection.user, now);
  if (connection.local) {
    // Only the name is missing, and a session does without if it takes long.
    if (!account && now < connection.name_by) return std::nullopt;
    Identity identity = connection.identity;
    if (account && account->ok()) identity.user = (*account)->user;
    return Result<Identity>(std::move(identity));
  }
  if (!account) return std::nullopt;
  if (!account->ok()) return Result<Identity>(account->status());
  Identity identity{(*account)->uid,    (*account)->gid, (*account)->user,
                    (*account)->groups, "ticket",        connection.name};
  return Result<Identity>(std::move(identity));
}

Status Daemon::check(const wire::Hello& hello) const {
  if (hello.api_hash != api::kApiHash) {
    return Status(Code::kProtocol,
                  "client and server were built from different versions of rcuda or of cuda.h: "
                  "install the same build on both");
  }
  if (!transport::find_medium(hello.medium)) {
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
  size_t sessions = pool_->sessions();
  for (const Connection& connection : connections_) sessions += connection.waits;
  if (sessions >= static_cast<size_t>(settings_.max_sessions.get())) {
    return Status(Code::kUnavailable, "all " + std::to_string(settings_.max_sessions.get()) +
                                          " sessions are taken: wait for one to end, or raise "
                                          "--max-sessions on the server");
  }
  for (uint32_t window = 0; window < wire::kWindowCount; ++window) {
    const wire::AddressWindow ours = address_window(window);
    if (std::none_of(hello.taken_windows.begin(), hello.taken_windows.end(),
                     [&](const wire::AddressWindow& theirs) { return overlap(ours, theirs); })) {
      return {};
    }
  }
  return Status(Code::kUnavailable, "the client's other servers use all " +
                                        std::to_string(wire::kWindowCount) +
                                        " address windows: name fewer servers in RCUDA_DEVICES");
}

void Daemon::refuse(Connection& connection, const Status& status) {
  RCUDA_WARN("%s refused: %s", connection.name.c_str(), status.message().c_str());
  send_refusal(connection.socket.get(), status);
}

void Daemon::report(Connection& connection) {
  wire::ServerStatus status;
  status.server = host_name();
  status.max_sessions = static_cast<uint32_t>(settings_.max_sessions.get());
  pool_->report(&status);
  (void)wire::write_message(connection.socket.get(), wire::MessageType::kStatus,
                            wire::encode(status), Clock::now() + std::chrono::milliseconds(100));
}

void Daemon::serve_waiting() {
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    Result<bool> assigned = false;
    if (connection->waits) {
      const std::optional<Result<Identity>> identity = identify(*connection);
      if (identity && !identity->ok()) {
        assigned = identity->status();
      } else if (identity) {
        assigned = pool_->assign(connection->hello, **identity, &connection->socket);
      }
    }
    if (!assigned.ok()) refuse(*connection, assigned.status());
    if (!assigned.ok() || *assigned) {
      connection = connections_.erase(connection);
    } else {
      ++connection;
    }
  }
}

// Lets a client distinguish a busy server from one that does not answer.
void Daemon::reassure_waiting() {
  const Clock::time_point now = Clock::now();
  for (Connection& connection : connections_) {
    if (!connection.waits || now < connection.tell_at) continue;
    (void)wire::write_message(connection.socket.get(), wire::MessageType::kQueued, {}, now);
    connection.tell_at = now + wire::kQueuedInterval;
  }
}

}  // namespace rcuda::server
