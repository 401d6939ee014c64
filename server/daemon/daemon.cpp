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

// Connections that have not introduced themselves, and how many of those that connect at once are
// taken before the others are read: a new one has its turn before enough others can take its place.
constexpr rlim_t kMostNewcomers = 512;
constexpr int kMostAcceptedAtOnce = 64;
constexpr auto kCrowdedInterval = std::chrono::seconds(10);
// A real Hello has some hundred bytes, and it travels on to a worker in one packet.
constexpr uint32_t kMaxHelloBytes = 64u << 10;

// Sessions and workers need descriptors, too.
size_t most_newcomers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostNewcomers;
  return std::clamp<rlim_t>(limit.rlim_cur / 4, 1, kMostNewcomers);
}

void send_refusal(int socket, const Status& status) {
  const wire::Refusal refusal{static_cast<uint32_t>(status.code()), status.context()};
  // A Refusal fits any socket buffer; a peer that cannot take it at once does not get it.
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
  WorkerPool pool(settings_,
                  static_cast<uint32_t>(std::hash<std::string>()(host_name() + listener_.address)));
  pool_ = &pool;
  for (;;) {
    std::vector<const wire::Hello*> waiting;
    for (const Peer& peer : peers_) {
      if (peer.waits) waiting.push_back(&peer.hello);
    }
    pool.refill(waiting);
    if (!announced_) {
      if (!pool.last_failure().ok()) return pool.last_failure();
      if (pool.ever_ready() || settings_.pool.get() == 0) announce();
    }

    std::vector<pollfd> items = {{stop_, POLLIN, 0}};
    if (announced_ && Clock::now() >= accept_from_) {
      items.push_back({listener_.tcp.get(), POLLIN, 0});
      items.push_back({listener_.local.get(), POLLIN, 0});
    }
    for (const Peer& peer : peers_) {
      // One that waits for a worker says nothing more, but may go away.
      items.push_back({peer.socket.get(), static_cast<short>(peer.waits ? POLLRDHUP : POLLIN), 0});
    }
    pool.add_descriptors(&items);
    if (::poll(items.data(), items.size(), poll_timeout_ms()) < 0 && errno != EINTR) {
      return Status::from_errno(errno, "poll");
    }
    if (items[0].revents) break;
    const auto is_ready = [&](int descriptor) {
      return std::any_of(items.begin(), items.end(), [&](const pollfd& item) {
        return item.fd == descriptor && item.revents != 0;
      });
    };
    pool.handle(items);
    const Clock::time_point now = Clock::now();
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      bool keep = true;
      if (is_ready(peer->socket.get())) {
        if (peer->waits) {
          RCUDA_INFO("%s went away while it waited for a worker", peer->name.c_str());
          keep = false;
        } else {
          keep = read(*peer);
        }
      } else if (now >= peer->deadline) {
        if (peer->waits) {
          refuse(*peer, pool.last_failure().ok()
                            ? Status(Code::kTimeout, "no worker became free in time; try again")
                            : pool.last_failure());
        } else {
          RCUDA_WARN("%s did not introduce itself in time and is dropped", peer->name.c_str());
        }
        keep = false;
      }
      peer = keep ? std::next(peer) : peers_.erase(peer);
    }
    if (is_ready(listener_.tcp.get())) accept_some(listener_.tcp.get(), false);
    if (is_ready(listener_.local.get())) accept_some(listener_.local.get(), true);
    serve_waiting();
    reassure_waiting();
  }
  RCUDA_INFO("stopping: %zu session(s) end", pool.sessions());
  listener_ = {};
  peers_.clear();
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
  for (const Peer& peer : peers_) {
    next = std::min(next, peer.waits ? std::min(peer.deadline, peer.tell_at) : peer.deadline);
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
      // Out of descriptors, most likely; who waits in the backlog is served when some are back.
      RCUDA_WARN("%s", accepted.status().message().c_str());
      accept_from_ = Clock::now() + std::chrono::seconds(1);
      return;
    }
    if (!accepted->socket) return;
    greet(std::move(accepted).value(), local);
  }
}

void Daemon::greet(Accepted accepted, bool local) {
  Peer peer;
  peer.socket = std::move(accepted.socket);
  peer.name = std::move(accepted.peer);
  peer.origin = std::move(accepted.origin);
  peer.user = accepted.user;
  peer.connection = accepted.connection;
  peer.local = local;
  peer.deadline = Clock::now() + settings_.handshake_timeout.get();
  RCUDA_DEBUG("%s connected", peer.name.c_str());
  if (peer.user && !wire::serves(::geteuid(), *peer.user)) {
    return refuse(peer, wire::not_served(listener_.port, ::geteuid(), *peer.user));
  }
  if (newcomers() >= most_newcomers_) drop_newcomer();
  peers_.push_back(std::move(peer));
}

size_t Daemon::newcomers() const {
  return static_cast<size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.waits; }));
}

// There is one at least.
void Daemon::drop_newcomer() {
  std::map<std::string_view, size_t> origins;
  for (const Peer& peer : peers_) origins[peer.origin] += !peer.waits;
  const auto most =
      std::max_element(origins.begin(), origins.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return !peer.waits && origins[peer.origin] == most->second;
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
  peers_.erase(oldest);
}

bool Daemon::read(Peer& peer) {
  wire::MessageHeader header;
  for (;;) {
    size_t wanted = sizeof header;
    if (peer.received.size() >= sizeof header) {
      std::memcpy(&header, peer.received.data(), sizeof header);
      Status status = wire::check_header(header);
      if (status.ok() && header.body_bytes > kMaxHelloBytes) {
        status = Status(Code::kProtocol, "the introduction is too long");
      }
      if (!status.ok()) {
        refuse(peer, status);
        return false;
      }
      wanted += header.body_bytes;
    }
    if (peer.received.size() == wanted) {
      return introduce(peer, header.type,
                       {peer.received.begin() + sizeof header, peer.received.end()});
    }
    const size_t have = peer.received.size();
    peer.received.resize(wanted);
    const ssize_t got =
        ::recv(peer.socket.get(), peer.received.data() + have, wanted - have, MSG_DONTWAIT);
    peer.received.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    // Port scanners and health checks connect and leave without a word.
    RCUDA_LOG(have == 0 ? LogLevel::kDebug : LogLevel::kWarn, "%s left during the handshake",
              peer.name.c_str());
    return false;
  }
}

bool Daemon::introduce(Peer& peer, wire::MessageType type, const std::vector<std::byte>& body) {
  if (type == wire::MessageType::kTicketQuery) {
    give_ticket(peer, body);
    return false;
  }
  if (type == wire::MessageType::kTicket) return take_ticket(peer, body);
  // These two know a secret of the session that they are for.
  if (type == wire::MessageType::kAttach) {
    Result<wire::Attach> attach = wire::decode_attach(body);
    if (!attach.ok()) {
      refuse(peer, attach.status());
    } else if (!pool_->attach(*attach, std::move(peer.socket))) {
      RCUDA_WARN("%s wants to join a session that does not exist", peer.name.c_str());
    }
    return false;
  }
  if (type == wire::MessageType::kPeerHello) {
    Result<wire::PeerHello> hello = wire::decode_peer_hello(body);
    if (!hello.ok()) {
      refuse(peer, hello.status());
    } else if (!pool_->call_on(*hello, &peer.socket)) {
      refuse(peer, Status(Code::kUnavailable,
                          "no worker of that session is here: it has ended, or the address is "
                          "another server's"));
    }
    return false;
  }
  if (Status status = admit(peer); !status.ok()) {
    refuse(peer, status);
    return false;
  }
  if (type == wire::MessageType::kStatusQuery) {
    report(peer);
    return false;
  }
  if (type != wire::MessageType::kHello) {
    refuse(peer, Status(Code::kProtocol, "the client began with the wrong message"));
    return false;
  }
  Result<wire::Hello> hello = wire::decode_hello(body);
  Status status = hello.ok() ? check(*hello) : hello.status();
  if (!status.ok()) {
    refuse(peer, status);
    return false;
  }
  peer.hello = std::move(hello).value();
  peer.waits = true;
  peer.received = {};
  peer.tell_at = Clock::now();
  peer.deadline = peer.tell_at + settings_.start_timeout.get();
  return true;
}

void Daemon::give_ticket(Peer& peer, const std::vector<std::byte>& body) {
  if (!peer.local) {
    return refuse(peer, Status(Code::kProtocol, "tickets are given over the local socket only"));
  }
  const Result<wire::TicketQuery> query = wire::decode_ticket_query(body);
  if (!query.ok()) return refuse(peer, query.status());
  const Result<wire::Ticket> ticket = tickets_.issue(*peer.user, *query, Clock::now());
  if (!ticket.ok()) return refuse(peer, ticket.status());
  (void)wire::write_message(peer.socket.get(), wire::MessageType::kTicket, wire::encode(*ticket),
                            Clock::now());
}

// False when it is refused; otherwise the introduction follows.
bool Daemon::take_ticket(Peer& peer, const std::vector<std::byte>& body) {
  const Result<wire::Ticket> ticket = wire::decode_ticket(body);
  Status status = ticket.status();
  if (status.ok() && peer.local)
    status = Status(Code::kProtocol, "tickets are for TCP connections");
  if (status.ok()) {
    peer.user = tickets_.redeem(*ticket, peer.connection, Clock::now());
    if (!peer.user) {
      status = Status(Code::kDenied,
                      "its ticket is unknown, used, expired or for another connection: try again, "
                      "and connect to the server itself, not through a tunnel or a proxy");
    }
  }
  if (!status.ok()) {
    refuse(peer, status);
    return false;
  }
  peer.name += " of uid " + std::to_string(*peer.user);
  peer.received = {};
  return true;
}

// Whoever is not known by user must be of another machine.
Status Daemon::admit(const Peer& peer) const {
  if (peer.user) return {};
  const Result<bool> of_this_machine = wire::any_on_this_machine({&peer.connection.client, 1});
  if (!of_this_machine.ok()) return of_this_machine.status();
  if (!*of_this_machine) return {};
  return Status(Code::kDenied,
                "it connects by TCP from the server's own machine and brings no ticket from the "
                "local socket @rcuda-" +
                    std::to_string(listener_.port) +
                    ", which would prove its user: connect to the server itself, not through a "
                    "tunnel or a proxy, and from the server's network namespace");
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
  for (const Peer& peer : peers_) sessions += peer.waits;
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

void Daemon::refuse(Peer& peer, const Status& status) {
  RCUDA_WARN("%s refused: %s", peer.name.c_str(), status.message().c_str());
  send_refusal(peer.socket.get(), status);
}

void Daemon::report(Peer& peer) {
  wire::ServerStatus status;
  status.server = host_name();
  status.max_sessions = static_cast<uint32_t>(settings_.max_sessions.get());
  pool_->report(&status);
  (void)wire::write_message(peer.socket.get(), wire::MessageType::kStatus, wire::encode(status),
                            Clock::now() + std::chrono::milliseconds(100));
}

void Daemon::serve_waiting() {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (peer->waits && pool_->assign(peer->hello, &peer->socket)) {
      peer = peers_.erase(peer);
    } else {
      ++peer;
    }
  }
}

// So that a client can tell a server that is busy from something that does not answer.
void Daemon::reassure_waiting() {
  const Clock::time_point now = Clock::now();
  for (Peer& peer : peers_) {
    if (!peer.waits || now < peer.tell_at) continue;
    (void)wire::write_message(peer.socket.get(), wire::MessageType::kQueued, {}, now);
    peer.tell_at = now + wire::kQueuedInterval;
  }
}

}  // namespace rcuda::server
