#include "server/daemon/daemon.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/passed_descriptors.h"
#include "common/reach/same_host.h"
#include "server/daemon/admission/rules_file.h"
#include "server/worker/device_set.h"

namespace rcuda::server {
namespace {

// The bound on connections that have not introduced themselves, and the bound on connections
// accepted in one round. The second is so small that a new connection is read before enough others
// can replace it.
constexpr rlim_t kMostNewcomers = 2048;
constexpr size_t kMostAcceptedAtOnce = 256;
constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(1);  // in one poll()
constexpr uid_t kContainersUser = 65534;                                     // for the closer
constexpr auto kPassAgain = std::chrono::milliseconds(5);  // connections to the closer
constexpr auto kCrowdedInterval = std::chrono::seconds(10);
// How many refusals of strangers are logged in an interval.
constexpr size_t kMostStrangersTold = 100;
constexpr auto kStrangersInterval = std::chrono::seconds(10);
// How long a client may take to read a long answer.
constexpr auto kReadsAnswer = std::chrono::seconds(5);

// Leaves descriptors for sessions and workers.
size_t most_newcomers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostNewcomers;
  return std::clamp<rlim_t>(limit.rlim_cur / 4, 1, kMostNewcomers);
}

void send_refusal(const Socket& client, const Status& status) {
  const wire::Refusal refusal{static_cast<uint32_t>(status.code()), status.context()};
  // A Refusal fits any socket buffer; a client that cannot take it at once does not get it.
  (void)wire::write_message(client, wire::MessageType::kRefusal, wire::encode(refusal),
                            std::chrono::steady_clock::now());
}

// Without identification, a public address would offer the machine to the world.
Status check_exposure(const Settings& settings, const Listener& listener) {
  if (settings.security.get() != "insecure" || listener.is_private) return {};
  return Status(Code::kInvalidArgument,
                "--insecure with the public address " + listener.address +
                    ": everybody who reaches it could run code here. Listen on a private address, "
                    "or say --security insecure-public");
}

}  // namespace

Daemon::Daemon(const Settings& settings, int stop, int ready)
    : settings_(settings),
      stop_(stop),
      ready_(ready),
      most_newcomers_(most_newcomers()),
      admission_(
          static_cast<size_t>(settings.max_sessions.get()),
          [this] { return pool_ ? pool_->offer().ordinals() : std::vector<uint32_t>(); },
          std::min(Admission::kMostWaiting, most_newcomers_)),
      tickets_(settings.handshake_timeout.get()),
      gate_(settings) {}

Status Daemon::run() {
  if (Status opened = open(); !opened.ok()) {
    close();
    return opened;
  }
  pool_->adopt_orphans();
  Result<bool> goes_on = true;
  while (goes_on.ok() && *goes_on) goes_on = take_turn(kLongestWait);
  if (goes_on.ok()) RCUDA_INFO("stopping: %zu session(s) end", pool_->sessions());
  close();
  return goes_on.status();
}

Status Daemon::listen() {
  Result<Listener> listener =
      listen_on(settings_.listen.get(), static_cast<uint16_t>(settings_.port.get()));
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  RCUDA_RETURN_IF_ERROR(check_exposure(settings_, listener_));
  pool_ =
      std::make_unique<WorkerPool>(settings_, Bases(host_name(), listener_.port), listener_.port);
  RCUDA_RETURN_IF_ERROR(pool_->prepare());
  // In the daemon's cgroup, and before there are threads and secrets.
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!take_descriptors(socket.get(), false)) RCUDA_RETURN_IF_ERROR(closer_.start());
  RCUDA_RETURN_IF_ERROR(gate_.open(!listener_.is_loopback));
  if (::geteuid() != 0) return {};
  return listen_as_root(&listener_, gate_.served().only_group());
}

Status Daemon::open() {
  RCUDA_RETURN_IF_ERROR(listen());
  Result<Rules> rules = read_rules(settings_);
  if (!rules.ok()) return rules.status();
  admission_.set_rules(std::move(rules).value());
  RCUDA_RETURN_IF_ERROR(audit_.open(settings_.audit.get()));
  leases_.emplace(settings_, admission_, gate_, audit_, *pool_);
  RCUDA_RETURN_IF_ERROR(leases_->open());
  pool_->record_in(&audit_);
  return {};
}

void Daemon::close() {
  // The closer closes these sockets too: strangers may have queued descriptors in them.
  for (LocalListener* const local : {&listener_.local, &listener_.roots, &listener_.containers}) {
    closer_.close(::geteuid(), local->release());
  }
  listener_ = {};
  connections_.clear();
  closer_.end();
  leases_.reset();
  pool_.reset();  // ends the workers
}

Result<bool> Daemon::take_turn(std::chrono::milliseconds longest_wait) {
  std::vector<WorkerPool::Waiting> waiting;
  for (const Connection& connection : connections_) {
    if (!connection.permit) continue;
    waiting.push_back(
        {&connection.hello, connection.permit->limits().sm_percent, &*connection.identity});
  }
  pool_->refill(waiting, draining_);
  if (!announced_) {
    if (!pool_->last_failure().ok()) return pool_->last_failure();
    if (pool_->ever_ready() || settings_.pool.get() == 0) announce();
  }

  const auto [accounts, munge] = gate_.descriptors();
  const bool accepts = announced_ && Clock::now() >= accept_from_;
  const bool closer_is_full = closer_.is_full();
  const bool accepts_local = accepts && !closer_is_full;
  // poll() ignores negative descriptors.
  std::vector<pollfd> items = {{stop_, POLLIN, 0},
                               {accounts, POLLIN, 0},
                               {munge, POLLIN, 0},
                               {monitor_.descriptor(), POLLIN, 0},
                               {accepts ? listener_.tcp.get() : -1, POLLIN, 0},
                               {accepts_local ? listener_.local.get() : -1, POLLIN, 0},
                               {accepts_local ? listener_.roots.get() : -1, POLLIN, 0},
                               {accepts_local ? listener_.containers.get() : -1, POLLIN, 0}};
  const size_t first_connection = items.size();
  for (const Connection& connection : connections_) {
    items.push_back({connection.socket.fd(), connection.events(), 0});
  }
  pool_->add_descriptors(&items);
  const auto wait = any_handshake_due() ? std::chrono::milliseconds(0)
                                        : std::min(longest_wait, time_to_next_deadline());
  if (::poll(items.data(), items.size(), static_cast<int>(wait.count())) < 0 && errno != EINTR) {
    return Status::from_errno(errno, "poll");
  }
  if (items[0].revents && !takes_signal()) return false;
  if (items[1].revents || items[2].revents) gate_.acknowledge();
  if (items[3].revents) monitor_.acknowledge();
  pool_->handle(items);
  leases_->expire();
  serve(items.data() + first_connection, Clock::now());
  shake_hands();
  // First, so that new connections replace none that has just introduced itself.
  serve_waiting();
  if (items[4].revents) accept_some(listener_.tcp.get(), Door::kNetwork);
  if (items[5].revents) accept_some(listener_.local.get(), Door::kLocal);
  if (items[6].revents) accept_some(listener_.roots.get(), Door::kLocal);
  if (items[7].revents) accept_some(listener_.containers.get(), Door::kContainers);
  reassure_waiting();
  return !is_drained();
}

// `events`: of all connections, in their order.
void Daemon::serve(const pollfd* events, Clock::time_point now) {
  for (auto connection = connections_.begin(); connection != connections_.end(); ++events) {
    bool keep = true;
    const bool looks = connection->look_at && now >= *connection->look_at;
    if ((events->revents != 0 || looks) && connection->reads()) {
      keep = read(*connection);
      // Its bytes stay in the socket, so only poll() reports its end.
      const bool gone = connection->closer && (events->revents & (POLLRDHUP | POLLHUP)) != 0;
      keep = keep && !(gone && connection->reads());
    } else if (events->revents != 0 && connection->shakes) {
      keep = false;  // gone before its handshake
    } else if (events->revents != 0 && !connection->unsent.empty()) {
      keep = !connection->unsent.send(connection->socket);
    } else if (events->revents != 0) {
      RCUDA_INFO("%s went away while it waited", connection->name.c_str());
      keep = false;
    } else if (connection->lease_request) {
      const Result<bool> answered = answer_lease_request(*connection);
      if (!answered.ok()) refuse(*connection, answered.status());
      keep = answered.ok() && !*answered;
    } else if (connection->gpus_asked) {
      keep = !answer_gpu_query(*connection);
    } else if (connection->proof) {
      const Status status = finish_proof(*connection);
      if (!status.ok()) refuse(*connection, status);
      keep = status.ok();
    }
    if (keep && now >= connection->deadline) keep = expire(*connection);
    connection = keep ? std::next(connection) : leave(connection);
  }
}

bool Daemon::send_answer(Connection& connection, wire::MessageType type,
                         const std::vector<std::byte>& body) {
  std::vector<std::byte> message = wire::message_bytes(type, body);
  if (message.empty()) {
    RCUDA_WARN("an answer of %zu bytes to %s is too long", body.size(), connection.name.c_str());
    return true;
  }
  connection.gpus_asked.reset();
  connection.lease_request.reset();
  connection.deadline = Clock::now() + kReadsAnswer;
  connection.unsent.put(std::move(message));
  return connection.unsent.send(connection.socket);
}

bool Daemon::expire(Connection& connection) {
  if (!connection.unsent.empty()) {
    RCUDA_WARN("%s does not read the answer to its question", connection.name.c_str());
    return false;
  }
  if (connection.lease_request && pool_->offer().ordinals().empty()) {
    refuse(connection,
           Status(Code::kUnavailable,
                  "the server has just started and does not know its devices before its "
                  "first worker is ready: try again (rcuda-lease take --wait)"));
    return false;
  }
  if (connection.lease_request) {
    refuse(connection, Status(Code::kTimeout,
                              "the server could not find out in time who the lease's user is: the "
                              "user database of its machine does not answer"));
    return false;
  }
  if (!connection.waits) {
    const bool told = connection.identity || tells_of_stranger();
    RCUDA_LOG(told ? LogLevel::kWarn : LogLevel::kDebug,
              "%s did not introduce itself in time and is dropped", connection.name.c_str());
    return false;
  }
  if (connection.applicant) {
    if (connection.applicant->is_decided()) return true;  // at the last moment
    refuse(connection,
           connection.applicant->timeout(std::chrono::milliseconds(connection.hello.wait_ms)));
    return false;
  }
  const Status& failure = pool_->last_failure();
  refuse(connection, failure.ok()
                         ? Status(Code::kTimeout, "no worker became free in time; try again")
                         : failure);
  return false;
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
  RCUDA_INFO("serving %s on %s and @rcuda-%u: device%s %s (%s; %s)", gate_.served().text().c_str(),
             listener_.address.c_str(), listener_.port, ordinals.size() == 1 ? "" : "s",
             ordinals.empty() ? "as workers find them" : list_of(ordinals).c_str(), names.c_str(),
             offer.driver.c_str());
  if (gate_.allows_anybody()) {
    RCUDA_WARN(
        "--insecure: any program that can connect to %s can run code on this machine as %s, and "
        "nothing is encrypted",
        listener_.address.c_str(), ::geteuid() == 0 ? "nobody" : "this user");
  }
  if (ready_ >= 0) {
    const std::string line = std::to_string(listener_.port) + "\n";
    [[maybe_unused]] ssize_t written = ::write(ready_, line.data(), line.size());
  }
}

std::chrono::milliseconds Daemon::time_to_next_deadline() const {
  Clock::time_point next = pool_->next_deadline();
  for (const Connection& connection : connections_) {
    next = std::min(next, connection.deadline);
    if (connection.look_at && connection.reads()) next = std::min(next, *connection.look_at);
    if (connection.waits) next = std::min(next, connection.tell_at);
    if (connection.waits && connection.is_newcomer()) {
      next = std::min(next, connection.account_by);
    }
    // Admission gave this client its turn after serve_waiting() had asked for it in this round.
    if (connection.applicant && connection.applicant->is_decided()) next = Clock::now();
    if (connection.proof) next = std::min(next, connection.proof_by);
  }
  if (accept_from_ > Clock::now()) next = std::min(next, accept_from_);
  if (closer_.has_more()) next = std::min(next, Clock::now() + kPassAgain);
  if (drain_until_) next = std::min(next, *drain_until_);
  if (const std::optional<Leases::Time> end = admission_.leases().next_end()) {
    next = std::min(next, Clock::now() + (*end - std::chrono::system_clock::now()));
  }
  if (next == Clock::time_point::max()) return kLongestWait;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(1), kLongestWait);
}

void Daemon::accept_some(int listening, Door door) {
  Crowd crowd = newcomers();
  // A new connection is read before enough others can replace it.
  const size_t most_at_once = std::clamp<size_t>(most_newcomers_ / 2, 1, kMostAcceptedAtOnce);
  for (size_t i = 0; i < most_at_once; ++i) {
    Result<Accepted> accepted = accept_from(listening, door != Door::kNetwork);
    if (!accepted.ok()) {
      // Most likely out of descriptors. Connections in the backlog are accepted when descriptors
      // are free again.
      RCUDA_WARN("%s", accepted.status().message().c_str());
      accept_from_ = Clock::now() + std::chrono::seconds(1);
      return;
    }
    if (!accepted->socket) return;
    greet(std::move(accepted).value(), door, &crowd);
  }
}

void Daemon::greet(Accepted accepted, Door door, Crowd* crowd) {
  Connection connection;
  connection.socket = std::move(accepted.socket);
  connection.name = std::move(accepted.peer);
  connection.origin = std::move(accepted.origin);
  connection.ends = accepted.connection;
  connection.local = door != Door::kNetwork;
  connection.deadline = Clock::now() + settings_.handshake_timeout.get();
  RCUDA_DEBUG("%s connected", connection.name.c_str());
  if (connection.local) {
    const Status status = recognise(connection, door);
    if (!status.ok()) return refuse(connection, status);
  }
  if (crowd->total >= most_newcomers_) drop_newcomer(crowd);
  ++crowd->origins[connection.origin];
  ++crowd->total;
  connections_.push_back(std::move(connection));
}

// Finds out who a local client is. In a container, the numbers of users are those of this machine,
// but root there is not root here, and its processes choose their groups. So the client's account
// here counts, as for a client of another machine; it may have to be looked up.
Status Daemon::recognise(Connection& connection, Door door) {
  Result<Identity> identity = identity_of_local(connection.socket.fd());
  if (!identity.ok()) return identity.status();
  connection.user = *identity->uid;
  if (closer_.started()) connection.closer = &closer_;
  if (door == Door::kContainers) {
    connection.proof = Proof{.method = kContainer, .account = connection.user};
    // Root of a container has as many users as it wants.
    connection.origin = "containers";
    connection.user = kContainersUser;
    connection.proof_by = Clock::now() + kLongestExamination;
    return finish_proof(connection);
  }
  connection.identity = std::move(identity).value();
  // A session may be of a user who is served by a token only, and its worker looks exports up.
  if (!is_served(*connection.identity) && !pool_->runs_as(connection.user)) {
    return wire::not_served(listener_.port, ::geteuid(), connection.user);
  }
  (void)gate_.account_of(connection.user, Clock::now());  // for knows_account()
  return {};
}

// Whether a client in a container must wait until the accounts of others in containers are known:
// each lookup takes a thread, which clients of other kinds need too.
bool Daemon::awaits_lookups(const Connection& client) const {
  if (client.looks_up || std::string_view(client.proof->method) != kContainer) return false;
  std::set<AccountKey> others;
  for (const Connection& other : connections_) {
    if (other.looks_up && other.proof && other.proof->account != client.proof->account) {
      others.insert(*other.proof->account);
    }
  }
  return others.size() >= Accounts::kMostAtOnce / 2;
}

// `local`: the identity of a process of this machine, which has a user.
bool Daemon::is_served(const Identity& local) const {
  return gate_.served().contains(*local.uid, local.gid, local.groups);
}

Daemon::Crowd Daemon::newcomers() const {
  Crowd crowd;
  for (const Connection& connection : connections_) {
    if (!connection.is_newcomer()) continue;
    ++crowd.origins[connection.origin];
    ++crowd.total;
  }
  return crowd;
}

// Drops the oldest newcomer of the origin that has the most, if possible one that is not spared.
// There is at least one newcomer.
void Daemon::drop_newcomer(Crowd* crowd) {
  const auto most =
      std::max_element(crowd->origins.begin(), crowd->origins.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const Clock::time_point now = Clock::now();
  const auto find = [&](Clock::time_point spared_from) {
    return std::find_if(connections_.begin(), connections_.end(), [&](const Connection& one) {
      return one.is_newcomer() && one.origin == most->first && one.spared_until <= spared_from;
    });
  };
  auto oldest = find(now);
  if (oldest == connections_.end()) oldest = find(Clock::time_point::max());
  if (now >= say_crowded_from_) {
    RCUDA_WARN(
        "too many connections have not introduced themselves, %zu of %s: the oldest are dropped "
        "for new ones",
        most->second, oldest->origin.c_str());
    say_crowded_from_ = now + kCrowdedInterval;
  }
  if (!oldest->shakes && (!oldest->tls || oldest->shaken) && oldest->unsent.empty()) {
    send_refusal(
        oldest->socket,
        Status(Code::kUnavailable,
               "too many connections to the server have not introduced themselves, and this "
               "is the oldest: try again, and see the server's log for where they come from"));
  }
  leave(oldest);
  --most->second;
  --crowd->total;
}

void Daemon::refuse(Connection& connection, const Status& status) {
  ++refused_[static_cast<size_t>(status.code())];
  const bool served = connection.identity && (!connection.local || is_served(*connection.identity));
  if (served || tells_of_stranger()) {
    RCUDA_WARN("%s refused: %s", connection.name.c_str(), status.message().c_str());
    audit_.refused(connection.identity ? connection.identity->from : connection.name,
                   connection.identity, status.message());
  }
  // A client in the middle of a TLS handshake could not read it.
  if (!connection.tls || connection.shaken) send_refusal(connection.socket, status);
}

// Strangers must not be able to fill the disk with the log and the audit.
bool Daemon::tells_of_stranger() {
  const Clock::time_point now = Clock::now();
  if (now >= strangers_since_ + kStrangersInterval) {
    if (strangers_refused_ > kMostStrangersTold) {
      const std::string more =
          std::to_string(strangers_refused_ - kMostStrangersTold) +
          " more connections were refused before they had identified themselves";
      RCUDA_WARN("%s", more.c_str());
      audit_.refused("many", {}, more);
    }
    strangers_since_ = now;
    strangers_refused_ = 0;
  }
  return ++strangers_refused_ <= kMostStrangersTold;
}

bool Daemon::report(Connection& connection) {
  wire::ServerStatus status;
  status.server = host_name();
  status.max_sessions = static_cast<uint32_t>(settings_.max_sessions.get());
  status.waiting = static_cast<uint32_t>(admission_.waiting());
  status.draining = draining_;
  pool_->report(&status, *connection.identity);
  if (WorkerPool::sees_all(*connection.identity)) status.totals.refused = refused_;
  return send_answer(connection, wire::MessageType::kStatus, wire::encode(status));
}

void Daemon::serve_waiting() {
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    const Result<bool> assigned = connection->waits ? advance(*connection) : false;
    if (!assigned.ok()) refuse(*connection, assigned.status());
    if (!assigned.ok() || *assigned) {
      connection = connections_.erase(connection);
    } else {
      ++connection;
    }
  }
}

// Takes a client on as far as is possible now. Returns true once it is passed to a worker.
Result<bool> Daemon::advance(Connection& connection) {
  RCUDA_RETURN_IF_ERROR(check_draining());
  if (!connection.permit) {
    if (!connection.applicant && !knows_account(connection)) return false;
    Result<bool> turn = has_turn(connection);
    if (!turn.ok() || !*turn) return turn;
  }
  return assign(connection);
}

// Whether the user's name and groups are known, or their look-up has run out of time.
bool Daemon::knows_account(Connection& connection) {
  Identity& identity = *connection.identity;
  if (!identity.uid || identity.user != user_text(*identity.uid)) return true;
  const Clock::time_point now = Clock::now();
  std::optional<Account> account = gate_.account_of(*identity.uid, now);
  if (!account) return now >= connection.account_by;
  identity.user = std::move(account->user);
  identity.account_groups = std::move(account->groups);
  return true;
}

// Whether the client may have a session now. If so, it has a permit.
Result<bool> Daemon::has_turn(Connection& connection) {
  const std::chrono::milliseconds wait(connection.hello.wait_ms);
  if (!connection.applicant) {
    auto applicant =
        admission_.apply(*connection.identity, connection.hello.devices, wait.count() != 0);
    if (!applicant.ok()) return applicant.status();
    connection.applicant = std::move(applicant).value();
    connection.deadline = connection.waits_since + wait;
  }
  if (!connection.applicant->is_decided()) return false;
  auto permit = connection.applicant->take();
  if (!permit.ok()) return permit.status();
  connection.permit = std::move(permit).value();
  connection.applicant.reset();
  connection.deadline = Clock::now() + settings_.start_timeout.get();
  return true;
}

// Passes a client to a worker. Returns false if there is none yet.
Result<bool> Daemon::assign(Connection& connection) {
  const WorkerPool::Waiting client{&connection.hello, connection.permit->limits().sm_percent,
                                   &*connection.identity};
  if (!pool_->has_worker_for(client)) {
    RCUDA_RETURN_IF_ERROR(pool_->lasting_failure(client));
    return false;
  }
  // A lease may have begun or ended while the client waited. Then it applies again.
  if (!admission_.check_devices(connection.hello.devices, connection.identity->lease).ok()) {
    connection.permit.reset();
    const Result<bool> turn = has_turn(connection);
    return turn.ok() ? Result<bool>(false) : turn;
  }
  std::optional<tls::Key> key;
  if (connection.tls) key = connection.tls->exported(tls::kSessionLabel);
  UniqueFd socket(::fcntl(connection.socket.fd(), F_DUPFD_CLOEXEC, 3));
  if (!socket) return Status::from_errno(errno, "passing the connection to a worker");
  Result<bool> assigned = pool_->assign(connection.hello, *connection.identity, key,
                                        connection.peeked, &socket, &connection.permit);
  if (assigned.ok() && *assigned && connection.tls) {
    // The worker waits for the client's first bytes, and the client waits for this message. The
    // worker gives up a client that does not read it.
    (void)wire::write_message(connection.socket, wire::MessageType::kAssigned, {}, Clock::now());
  }
  return assigned;
}

// Lets a client distinguish a busy server from one that does not answer.
void Daemon::reassure_waiting() {
  const Clock::time_point now = Clock::now();
  const auto tell = [&](Connection& connection) {
    if (!connection.waits || now < connection.tell_at) return true;
    wire::Queued queued;
    if (connection.applicant) {
      queued.place = static_cast<uint32_t>(connection.applicant->place());
      queued.reason = connection.applicant->reason();
    }
    connection.tell_at = now + wire::kQueuedInterval;
    const Status told = wire::write_message(connection.socket, wire::MessageType::kQueued,
                                            wire::encode(queued), now);
    if (told.ok()) return true;
    // It has not read for so long that its socket is full, and may have got a part of the message.
    RCUDA_WARN("%s stopped reading; dropped from the queue: %s", connection.name.c_str(),
               told.message().c_str());
    return false;
  };
  connections_.remove_if([&](Connection& connection) { return !tell(connection); });
}

}  // namespace rcuda::server
