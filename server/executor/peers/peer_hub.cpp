#include "server/executor/peers/peer_hub.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/passed_descriptors.h"
#include "common/base/start_thread.h"
#include "common/messages/message_io.h"
#include "common/messages/refusal.h"
#include "common/reach/connect.h"
#include "common/reach/session_link.h"
#include "common/reach/socket_keys.h"
#include "common/tls/keyed.h"
#include "common/wire/address_ranges.h"

namespace rcuda::server {

using transport::Reach;

namespace {

// The most sockets that may wait for an introduction: enough for all Links of a session. The limit
// stops a flood of connections.
constexpr size_t kMostCallers = 1024;

// The most workers with which one worker of a program connects.
constexpr size_t kMostPeers = wire::kMostServers - 1;

// The most connections in progress, together with failed connections that began within the last
// handshake timeout.
constexpr size_t kMostAttempts = 64;

// Link numbers are small: this worker sends them to an address that the client chose, and a client
// must not control the first bytes that another server reads.
constexpr p2p::PeerId kMostLinks = 1u << 20;

// The longest name that DNS has.
constexpr size_t kMostHostBytes = 255;

Status session_ends() { return {Code::kUnavailable, "the session ends"}; }

}  // namespace

PeerHub::PeerHub(const api::DriverTable& driver, Options options)
    : driver_(driver), options_(std::move(options)), returns_(options_.handshake_timeout) {}

PeerHub::~PeerHub() {
  shut();
  for (const auto& attempt : given_up_) attempt->thread.join();
}

Status PeerHub::introduce(const Introduction& introduction,
                          std::vector<CudaDeviceOps::Device> devices) {
  RCUDA_RETURN_IF_ERROR(check_introduction(introduction));
  if (!engine_) {
    RCUDA_ASSIGN_OR_RETURN(ops_,
                           CudaDeviceOps::create(driver_, {std::move(devices), options_.on_error,
                                                           options_.on_change, options_.names,
                                                           client_has_}));
    p2p::EngineOptions engine;
    engine.planner = options_.planner;
    engine.peers = std::clamp(introduction.workers, 2u, wire::kMostServers) - 1;
    engine.host_name = host_name();
    engine.spin = options_.spin;
    engine.on_decided = [this](p2p::PeerId link) {
      {
        MutexLock lock(mutex_);
        decided_.insert(link);
      }
      if (options_.on_change) options_.on_change();
    };
    engine.on_lost = [this](p2p::PeerId link, const Status& why) { lost(link, why); };
    engine.on_sent = [this](const p2p::Plan& plan) {
      const auto counter = wire::peer_copies(to_string(plan.route), to_string(plan.staging));
      sent_[static_cast<size_t>(counter) - kFirstCounter].fetch_add(1, std::memory_order_relaxed);
    };
    auto started = p2p::Engine::create(*ops_, std::move(engine));
    if (!started) {
      ops_.reset();
      return started.status();
    }
    engine_ = *std::move(started);
  }
  auto made = std::make_unique<Attempt>();
  made->introduction = introduction;
  made->begin = Clock::now();
  Attempt& attempt = *(links_[introduction.link] = std::move(made));
  {
    MutexLock lock(mutex_);
    introduced_.emplace(introduction.link, introduction);
  }
  const Status started = start_thread(&attempt.thread, [this, &attempt] { connect(attempt); });
  if (!started.ok()) {
    engine_->lose(introduction.link, started);
    attempt.over = true;
    log_lost(introduction, started);
    report_lost(introduction, started);
  }
  return {};
}

Status PeerHub::check_introduction(const Introduction& introduction) {
  if (links_.contains(introduction.link)) {
    return {Code::kInvalidArgument, "the client introduced the worker twice"};
  }
  if (introduction.worker >= wire::kMostServers || introduction.link >= kMostLinks ||
      introduction.host.size() > kMostHostBytes) {
    return {Code::kProtocol, "the client introduced a worker with an invalid number or host name"};
  }
  const std::pair address(introduction.host, introduction.port);
  const auto known = addresses_.find(introduction.worker);
  if (known != addresses_.end() && known->second != address) {
    return {Code::kProtocol, "the client named two addresses for one worker"};
  }
  if (known == addresses_.end() && addresses_.size() >= kMostPeers) {
    return {Code::kInvalidArgument,
            "a worker connects with at most " + std::to_string(kMostPeers) +
                " other workers: name fewer servers in RCUDA_DEVICES"};
  }
  if (attempts() >= kMostAttempts) {
    return {Code::kUnavailable,
            std::to_string(kMostAttempts) +
                " connections with other workers are in progress or have just failed: try later"};
  }
  addresses_[introduction.worker] = address;
  return {};
}

size_t PeerHub::attempts() {
  size_t running = 0;
  const auto over = [&](const std::unique_ptr<Attempt>& attempt) {
    if (!attempt->over) return ++running, false;
    if (attempt->thread.joinable()) attempt->thread.join();
    return true;
  };
  for (const auto& [link, attempt] : links_) (void)over(attempt);
  std::erase_if(given_up_, over);
  MutexLock lock(mutex_);
  std::erase_if(failed_, [&](Clock::time_point begin) {
    return Clock::now() - begin > options_.handshake_timeout;
  });
  return running + failed_.size();
}

void PeerHub::connect(Attempt& attempt) {
  pthread_setname_np(pthread_self(), "rcuda-p2p-join");
  const Introduction& introduction = attempt.introduction;
  {
    auto link = introduction.connects ? connect_peer(attempt)
                                      : await_peer(attempt, transport::media().size());
    MutexLock lock(mutex_);
    attempt.socket.reset();
    if (!link) failed_.push_back(attempt.begin);
    if (!link && introduction.connects && !attempt.welcomed && !attempt.given_up) {
      log_lost(introduction, link.status());
      // The client chose the address. So unless a worker of the program has answered, the client
      // gets its answer at the deadline, and learns nothing about other hosts and ports.
      changed_.wait_until(lock, deadline_of(attempt),
                          [&]() RCUDA_REQUIRES(mutex_) { return attempt.given_up; });
      link = no_connection();
    }
    // The engine exists until shut() has given the attempt up.
    if (!attempt.given_up && link) {
      engine_->attach(introduction.link, *std::move(link), introduction.token,
                      introduction.connects);
    } else if (!attempt.given_up) {
      engine_->lose(introduction.link, link.status());
      lock.unlock();
      // Only the side that connects reports the failure to the user.
      if (introduction.connects) {
        report_lost(introduction, link.status());
      } else {
        log_lost(introduction, link.status());
      }
    }
  }
  attempt.over = true;
}

PeerHub::Clock::time_point PeerHub::deadline_of(const Attempt& attempt) const {
  return attempt.begin + options_.handshake_timeout;
}

Status PeerHub::no_connection() const {
  return {Code::kUnavailable,
          "the two servers have not connected in time; the log of the server on " + host_name() +
              " has the reason"};
}

void PeerHub::log_lost(const Introduction& introduction, const Status& why) {
  RCUDA_WARN("no peer-to-peer connection with %s: %s", other_server(introduction).c_str(),
             why.message().c_str());
}

void PeerHub::report_lost(const Introduction& introduction, const Status& why) const {
  if (!options_.report) return;
  options_.report("rcuda: copies between " + host_name() + " and " + other_server(introduction) +
                  " will fail: " + why.context() + "\n");
}

// An established connection is lost for good: reports that copies will fail.
void PeerHub::lost(p2p::PeerId link, const Status& why) {
  MutexLock lock(mutex_);
  const auto found = introduced_.find(link);
  if (found == introduced_.end()) return;  // the session ends
  const Introduction introduction = found->second;
  lock.unlock();
  report_lost(introduction, why);
}

std::string PeerHub::other_server(const Introduction& introduction) {
  return introduction.host.empty() ? "worker " + std::to_string(introduction.worker)
                                   : introduction.host + ":" + std::to_string(introduction.port);
}

bool PeerHub::note_socket(Attempt& attempt, int socket) {
  UniqueFd same(::fcntl(socket, F_DUPFD_CLOEXEC, 3));
  MutexLock lock(mutex_);
  attempt.socket = std::move(same);
  return !attempt.given_up;
}

std::string PeerHub::encrypts_because(const Introduction& introduction) const {
  if (introduction.must_encrypt) return "RCUDA_SECURITY is tls";
  return introduction.encrypted && !options_.trusted_fabric ? kNoTrust : "";
}

bool PeerHub::may_fall_back(const transport::Medium& medium) const {
  return !options_.planner.medium && medium.traits.reach == Reach::kNetwork &&
         &medium != &transport::plain_medium(Reach::kNetwork);
}

Result<std::unique_ptr<transport::Link>> PeerHub::link_over(const transport::Medium& medium,
                                                            transport::Bootstrap bootstrap) const {
  bootstrap.timeout = options_.handshake_timeout;
  if (may_fall_back(medium)) bootstrap.timeout /= wire::kTryingPart;
  return transport::make_link(medium, std::move(bootstrap),
                              p2p::Engine::link_options(options_.link));
}

Result<std::unique_ptr<transport::Link>> PeerHub::connect_peer(Attempt& attempt) {
  const transport::Medium* const wanted = options_.planner.medium;
  auto link = connect_peer(attempt, wanted);
  if (wanted) return link;
  // TCP is the fallback in three cases: the other worker cannot use this medium; no Link could be
  // made over it; or the other server on this machine belongs to another user, and its local socket
  // refuses this worker. Over TCP that server accepts the session's id instead.
  if (link.status().code() == Code::kUnsupported || link.status().code() == Code::kDenied) {
    const transport::Medium& plain = transport::plain_medium(Reach::kNetwork);
    RCUDA_INFO("peer-to-peer with %s falls back to %s: %s",
               other_server(attempt.introduction).c_str(), plain.name(),
               link.status().message().c_str());
    return connect_peer(attempt, &plain);
  }
  return link;
}

Result<std::unique_ptr<transport::Link>> PeerHub::connect_peer(Attempt& attempt,
                                                               const transport::Medium* wanted) {
  const Introduction& introduction = attempt.introduction;
  const auto deadline = deadline_of(attempt);
  RCUDA_ASSIGN_OR_RETURN(
      wire::Connection connection,
      wire::connect_server(introduction.host, introduction.port, wanted,
                           std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now())));
  const int socket = connection.socket.fd();
  if (!note_socket(attempt, socket)) return session_ends();
  const transport::Medium& medium =
      wanted ? *wanted
             : *transport::best_medium(connection.medium->traits.reach, socket,
                                       encrypts_because(introduction))
                    .medium;
  RCUDA_ASSIGN_OR_RETURN(const wire::PeerAddress worker,
                         connection.medium->traits.reach == Reach::kNetwork
                             ? wire::peer_address(socket)
                             : wire::PeerAddress());
  wire::PeerHello hello;
  uint8_t session[16];
  std::copy(options_.session.begin(), options_.session.end(), session);
  wire::session_name(session, hello.session);
  hello.worker = introduction.worker;
  hello.link = introduction.link;
  hello.medium = medium.name();
  const Status sent =
      wire::write_message(socket, wire::MessageType::kPeerHello, wire::encode(hello), deadline);
  Result<Socket> stream =
      secured(introduction, 0, connection.socket.release(), tls::Role::kClient, deadline);
  if (!stream) return sent.ok() ? stream.status() : sent;
  // A server that does not serve this user refuses before it reads the PeerHello, so writing the
  // PeerHello may have failed. The refusal explains more than that failure, so it is read first.
  auto answer = wire::read_message(*stream, deadline);
  if (!answer) return sent.ok() ? answer.status() : sent;
  if (answer->first == wire::MessageType::kRefusal) {
    return wire::refusal_error(answer->second, "the other worker refused the connection",
                               Code::kUnavailable, {Code::kUnsupported, Code::kDenied});
  }
  if (answer->first != wire::MessageType::kPeerWelcome) {
    return Status(Code::kProtocol, "the other worker answered PeerHello with a message of type " +
                                       std::to_string(static_cast<uint32_t>(answer->first)) +
                                       ": install the same build of rcuda on both servers");
  }
  attempt.welcomed = true;
  transport::Bootstrap bootstrap;
  bootstrap.control = *std::move(stream);
  bootstrap.open_stream = [&](int index) -> Result<Socket> {
    const auto until = Clock::now() + options_.handshake_timeout;
    RCUDA_ASSIGN_OR_RETURN(UniqueFd further, wire::connect_again(worker, until));
    wire::PeerHello own = hello;
    own.stream = static_cast<uint32_t>(index) + 1;
    RCUDA_RETURN_IF_ERROR(wire::write_message(further.get(), wire::MessageType::kPeerHello,
                                              wire::encode(own), until));
    return secured(introduction, own.stream, std::move(further), tls::Role::kClient, until);
  };
  if (medium.traits.reach == Reach::kNetwork) {
    bootstrap.reconnecting = returns_.connecting(returning(introduction, hello), worker);
  }
  auto link = link_over(medium, std::move(bootstrap));
  if (link || !may_fall_back(medium)) return link;
  return Status(Code::kUnsupported, link.status().message());
}

PeerReturns::PeerLinkName PeerHub::returning(const Introduction& introduction,
                                             const wire::PeerHello& hello) const {
  PeerReturns::PeerLinkName name;
  name.hello = hello;
  std::memcpy(name.secret.data(), introduction.token.data(), name.secret.size());
  name.encrypted = introduction.encrypted;
  name.limit = std::min(introduction.reconnect, options_.reconnect);
  name.peer = "the server " + other_server(introduction);
  return name;
}

Result<std::unique_ptr<transport::Link>> PeerHub::await_peer(Attempt& attempt, size_t tries) {
  std::string name;
  RCUDA_ASSIGN_OR_RETURN(Socket stream, take_caller(attempt, 0, &name));
  const auto deadline = Clock::now() + options_.handshake_timeout;
  const transport::Medium* const medium = transport::find_medium(name);
  const Status usable = !medium ? Status(Code::kUnsupported,
                                         "the other worker chose a transport that this build "
                                         "does not know: install the same build of rcuda on both "
                                         "servers")
                        : options_.planner.medium
                            ? medium->usable(stream.fd())
                            : medium->suits(stream.fd(), encrypts_because(attempt.introduction));
  if (!usable.ok()) {
    const wire::Refusal refusal{static_cast<uint32_t>(Code::kUnsupported), usable.context()};
    (void)wire::write_message(stream, wire::MessageType::kRefusal, wire::encode(refusal), deadline);
    // Unless the session requires this medium, the other worker connects again over another medium.
    return options_.planner.medium || tries == 0 ? Result<std::unique_ptr<transport::Link>>(usable)
                                                 : await_peer(attempt, tries - 1);
  }
  // After the Welcome, the other worker may send descriptors.
  if (!stream.encrypted()) (void)take_descriptors(stream.fd(), true);
  RCUDA_RETURN_IF_ERROR(wire::write_message(stream, wire::MessageType::kPeerWelcome, {}, deadline));
  transport::Bootstrap bootstrap;
  bootstrap.control = std::move(stream);
  bootstrap.server = true;
  bootstrap.accept_stream = [&](int index) -> Result<Socket> {
    return take_caller(attempt, static_cast<uint32_t>(index) + 1, nullptr);
  };
  if (medium->traits.reach == Reach::kNetwork) {
    wire::PeerHello hello;
    hello.link = attempt.introduction.link;
    bootstrap.reconnecting = returns_.awaiting(returning(attempt.introduction, hello));
  }
  auto link = link_over(*medium, std::move(bootstrap));
  if (link || !may_fall_back(*medium) || tries == 0) return link;
  RCUDA_INFO("cannot connect with %s over %s: %s", other_server(attempt.introduction).c_str(),
             medium->name(), link.status().message().c_str());
  return await_peer(attempt, tries - 1);
}

// Leaves a Unix socket unencrypted, because its bytes stay on this machine.
Result<Socket> PeerHub::secured(const Introduction& introduction, uint32_t stream, UniqueFd socket,
                                tls::Role role, Clock::time_point deadline) const {
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  const bool network =
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0 ||
      own.ss_family != AF_UNIX;
  if (!introduction.encrypted || !network) return Socket(std::move(socket));
  tls::Key secret;
  std::memcpy(secret.data(), introduction.token.data(), secret.size());
  return tls::encrypt(std::move(socket),
                      wire::peer_socket_key(secret, introduction.link, stream, 0), role, deadline);
}

bool PeerHub::begin_pause(p2p::Pause what) {
  if (!ops_->begin_pause(what)) return false;
  engine_->wake();
  return true;
}

bool PeerHub::is_decided(p2p::PeerId link) const {
  MutexLock lock(mutex_);
  return decided_.contains(link);
}

void PeerHub::accept_caller(const wire::PeerHello& hello, UniqueFd socket) {
  MutexLock lock(mutex_);
  if (hello.attempt != 0) {
    const bool is_being_made = introduced_.contains(hello.link) && !decided_.contains(hello.link);
    lock.unlock();
    return returns_.accept(hello, std::move(socket), is_being_made);
  }
  const Clock::time_point now = Clock::now();
  std::erase_if(callers_, [&](const auto& entry) {
    return now - entry.second.since > options_.handshake_timeout;
  });
  if (callers_.size() >= kMostCallers) {
    if (!std::exchange(said_crowded_, true)) {
      RCUDA_WARN(
          "too many connections from workers that the client has not introduced: new ones are "
          "closed");
    }
    return;
  }
  callers_.emplace(StreamKey{hello.link, hello.stream}, Caller{hello, std::move(socket), now});
  changed_.notify_all();
}

// An attacker can see a PeerHello on the network and send it again. So several connections may
// claim to be this stream, and the earliest is tried first. With encryption, a connection without
// the right key is dropped after a quarter of the time, and the next connection is tried.
Result<Socket> PeerHub::take_caller(Attempt& attempt, uint32_t stream, std::string* medium) {
  const auto deadline = Clock::now() + options_.handshake_timeout;
  for (;;) {
    RCUDA_ASSIGN_OR_RETURN(Caller caller, wait_for_caller(attempt, stream, deadline));
    if (stream == 0 && !note_socket(attempt, caller.socket.get())) return session_ends();
    const auto patience = std::min(deadline, Clock::now() + options_.handshake_timeout / 4);
    Result<Socket> socket = secured(attempt.introduction, stream, std::move(caller.socket),
                                    tls::Role::kServer, patience);
    if (medium) *medium = caller.hello.medium;
    if (socket || Clock::now() >= deadline) return socket;
    RCUDA_WARN("closed a connection that claims to come from %s: %s",
               other_server(attempt.introduction).c_str(), socket.status().message().c_str());
  }
}

Result<PeerHub::Caller> PeerHub::wait_for_caller(const Attempt& attempt, uint32_t stream,
                                                 Clock::time_point deadline) {
  MutexLock lock(mutex_);
  const StreamKey key{attempt.introduction.link, stream};
  const bool come = changed_.wait_until(lock, deadline, [&]() RCUDA_REQUIRES(mutex_) {
    return callers_.contains(key) || attempt.given_up;
  });
  if (attempt.given_up) return session_ends();
  if (!come) return Status(Code::kTimeout, "the other worker did not connect in time");
  const auto found = callers_.lower_bound(key);  // the earliest
  Caller caller = std::move(found->second);
  callers_.erase(found);
  return caller;
}

Status PeerHub::copy(p2p::PeerCopy copy, Status failure) {
  ++copying_;
  copy.done = [this, done = std::move(copy.done)](const Status& status) {
    --copying_;
    if (done) done(status);
  };
  const Status queued = engine_->copy(std::move(copy), std::move(failure));
  if (!queued.ok()) --copying_;  // after an error `done` does not run
  return queued;
}

void PeerHub::count_copies(wire::Work* work) const {
  if (!active()) return;
  for (size_t i = 0; i < sent_.size(); ++i) {
    work->counts[kFirstCounter + i] = sent_[i].load(std::memory_order_relaxed);
  }
}

void PeerHub::shut() {
  {
    MutexLock lock(mutex_);
    callers_.clear();
    introduced_.clear();
    for (auto& [link, attempt] : links_) {
      attempt->given_up = true;
      if (attempt->socket) (void)::shutdown(attempt->socket.get(), SHUT_RDWR);
      if (attempt->thread.joinable()) given_up_.push_back(std::move(attempt));
    }
  }
  changed_.notify_all();
  links_.clear();
  std::erase_if(given_up_, [](const auto& attempt) {
    if (!attempt->over) return false;
    attempt->thread.join();
    return true;
  });
  if (ops_) ops_->grant_by_itself();  // this thread, which grants pauses, now waits for the engine
  engine_.reset();
  ops_.reset();
  MutexLock lock(mutex_);
  decided_.clear();
}

}  // namespace rcuda::server
