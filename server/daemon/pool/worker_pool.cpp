#include "server/daemon/pool/worker_pool.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>

#include <fcntl.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/socket_io.h"
#include "common/reach/connect.h"
#include "common/transport/media.h"
#include "server/identity/owner.h"
#include "server/protocol/session_grant.h"

namespace rcuda::server {
namespace {

constexpr auto kCollectPause = std::chrono::milliseconds(10);

Status add_memory(WorkerMessageType type, int memory, std::vector<WorkerMessage>* messages) {
  WorkerMessage& message = messages->emplace_back();
  message.type = type;
  message.descriptor.reset(::fcntl(memory, F_DUPFD_CLOEXEC, 3));
  return message.descriptor ? Status() : Status::from_errno(errno, "passing memory to a worker");
}

// The memory that a worker shares with the daemon: a ledger for each allowance, and the page for
// what it does.
Result<std::vector<WorkerMessage>> memory_messages(const Admission::Permit* permit,
                                                   const WorkPage& work) {
  std::vector<WorkerMessage> messages;
  for (const int ledger : permit ? permit->ledgers() : std::vector<int>()) {
    RCUDA_RETURN_IF_ERROR(add_memory(WorkerMessageType::kLedger, ledger, &messages));
  }
  RCUDA_RETURN_IF_ERROR(add_memory(WorkerMessageType::kWork, work.descriptor(), &messages));
  return messages;
}

Status send_all(int control, const std::vector<WorkerMessage>& messages) {
  for (const WorkerMessage& message : messages) {
    RCUDA_RETURN_IF_ERROR(send_worker_message(control, message, WorkerPool::Clock::now()));
  }
  return {};
}

bool fill_randomly(std::span<uint8_t> bytes) {
  return ::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
}

std::string outcome(int status) {
  if (WIFEXITED(status)) return "exit status " + std::to_string(WEXITSTATUS(status));
  return std::string("signal ") + ::strsignal(WTERMSIG(status));
}

}  // namespace

WorkerPool::WorkerPool(const Settings& settings, const Bases& bases, uint16_t port)
    : settings_(settings),
      bases_(bases),
      port_(port),
      doublings_(doublings_for(gpu_nodes().size())),
      device_sets_(settings),
      demand_(static_cast<size_t>(settings.pool.get()),
              static_cast<size_t>(settings.pool_most.get()), settings.pool_time.get()) {}

WorkerPool::~WorkerPool() { shutdown(); }

Status WorkerPool::prepare() {
  const std::string& choice = settings_.cgroup.get();
  if (choice == "none") return {};
  Result<std::unique_ptr<Cgroups>> cgroups = Cgroups::open(choice);
  if (cgroups.ok()) {
    cgroups_ = std::move(cgroups).value();
    RCUDA_INFO("each session has a cgroup of its own below %s", cgroups_->text().c_str());
    return {};
  }
  if (choice != "auto") {
    return Status(cgroups.status()).with_context("RCUDA_SERVER_CGROUP=" + choice);
  }
  const bool limited = settings_.session_memory.get() || settings_.session_processes.get();
  RCUDA_LOG(limited || ::geteuid() == 0 ? LogLevel::kWarn : LogLevel::kDebug,
            "no cgroup is delegated to this server (%s): limits of a session's memory and "
            "processes are those of its process (setrlimit), and the server itself ends what a "
            "session leaves behind (with systemd, set Delegate=yes; RCUDA_SERVER_CGROUP=none is "
            "silent)",
            cgroups.status().message().c_str());
  return {};
}

size_t WorkerPool::sessions() const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [](const Worker& w) { return w.is(State::kBusy); }));
}

// A session runs code of its client. Root's worker becomes the client's user before that.
Status WorkerPool::check_user(const Identity& identity) {
  if (::geteuid() != 0 || identity.uid) return {};
  return Status(Code::kDenied, "user " + identity.user +
                                   " is not known on the server's machine, and a server that runs "
                                   "as root runs no session as root: create the user there, or run "
                                   "rcuda-server as a user of its own");
}

bool WorkerPool::has_worker_for(const Waiting& client) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.is(State::kIdle) && suits(worker, client);
  });
}

// Those that can serve nobody else come first.
std::vector<WorkerPool::Worker*> WorkerPool::idle_for(const Waiting& client) {
  std::vector<Worker*> all;
  for (Worker& worker : workers_) {
    if (worker.is(State::kIdle) && suits(worker, client)) all.push_back(&worker);
  }
  std::stable_partition(all.begin(), all.end(),
                        [](const Worker* worker) { return worker->is_kept(); });
  return all;
}

Result<bool> WorkerPool::assign(const wire::Hello& hello, const Identity& identity,
                                const std::optional<tls::Key>& key, size_t peeked, UniqueFd* socket,
                                std::unique_ptr<Admission::Permit>* permit) {
  RCUDA_RETURN_IF_ERROR(check_user(identity));
  Result<WorkPage> work = WorkPage::make();
  if (!work.ok()) return work.status();
  const Result<std::vector<WorkerMessage>> memory = memory_messages(permit->get(), *work);
  if (!memory.ok()) return memory.status();
  const Waiting client{&hello, *permit ? (*permit)->limits().sm_percent : 0, &identity};
  for (Worker* const suitable : idle_for(client)) {
    Worker& worker = *suitable;
    SessionGrant grant = grant_to(identity, worker);
    grant.owner = owner_of(identity, hello);
    grant.key = key;
    grant.port = port_;
    if (!fill_randomly(grant.exporter)) return false;
    const wire::ExportPlace exports = wire::export_place(grant.owner, grant.exporter);
    if (*permit) {
      grant.allowances = (*permit)->allowances();
      grant.limits = (*permit)->limits();
    }
    const Result<std::vector<std::byte>> body = encode_session({std::move(grant), hello});
    if (!body.ok()) return body.status();
    WorkerMessage message;
    message.type = WorkerMessageType::kSession;
    message.peeked = static_cast<uint32_t>(peeked);
    if (!fill_randomly(message.token)) return false;
    worker.attach_tokens.clear();
    for (uint32_t index = 0; index < wire::kMostSockets; ++index) {
      worker.attach_tokens.emplace_back(wire::attach_token(message.token, index));
    }
    message.body = *body;
    message.descriptor = std::move(*socket);
    Status sent = send_all(worker.control.get(), *memory);
    if (sent.ok()) sent = send_worker_message(worker.control.get(), message, Clock::now());
    if (!sent.ok()) {
      *socket = std::move(message.descriptor);
      give_up(worker, sent);
      continue;
    }
    worker.permit = std::move(*permit);
    worker.work = std::move(work).value();
    worker.work->close_descriptor();
    worker.exports = exports;
    hand_over(worker, hello, identity);
    if (audit_) audit_->began(audited(worker));
    return true;
  }
  return false;
}

// A worker that has just died, or that does not read. It may have got a part of a session.
void WorkerPool::give_up(Worker& worker, const Status& why) {
  RCUDA_WARN("worker %d took no session and is ended: %s", worker.pid, why.message().c_str());
  ::kill(worker.pid, SIGKILL);
  worker.state = State::kEnding;
}

// The worker has got the session.
void WorkerPool::hand_over(Worker& worker, const wire::Hello& hello, const Identity& identity) {
  device_sets_.used(worker.devices);
  worker.state = State::kBusy;
  worker.owner = owner_of(identity, hello);
  worker.totals.reset();
  worker.heard = !reuses();
  worker.ended_by.clear();
  worker.look_at = {};
  worker.since = Clock::now();
  demand_.taken(worker.since);
  wire::session_name(hello.session, worker.client);
  worker.index = hello.worker;
  worker.fallback = transport::find_medium(hello.fallback) ? hello.fallback : "";
  worker.identity = identity;
  worker.session = {hello.user,
                    hello.program,
                    hello.host,
                    hello.pid,
                    static_cast<uint32_t>(worker.pid),
                    transport::find_medium(hello.medium) ? hello.medium : worker.fallback,
                    0,
                    hello.devices,
                    identity.job};
}

SessionGrant WorkerPool::grant_to(const Identity& identity, const Worker& worker) const {
  SessionGrant grant;
  grant.user = identity.user;
  grant.uid = identity.uid;
  grant.gid = identity.gid;
  grant.groups = identity.groups;
  grant.own_user = identity.uid == ::geteuid() && identity.method != "insecure";
  grant.may_be_followed = reuses();
  const auto in_cgroup = [&](const char* controller) {
    return worker.cgroup && cgroups_->has(controller);
  };
  if (!in_cgroup("memory")) grant.most_data_bytes = settings_.session_memory.get();
  if (!in_cgroup("pids")) {
    grant.most_processes = static_cast<uint64_t>(settings_.session_processes.get());
  }
  return grant;
}

bool WorkerPool::attach(const wire::Attach& attach, size_t peeked, UniqueFd socket) {
  if (attach.index >= wire::kMostSockets) return false;
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy)) continue;
    std::optional<wire::AttachToken>& token = worker.attach_tokens[attach.index];
    if (!token || CRYPTO_memcmp(token->data(), attach.token, token->size()) != 0) continue;
    token.reset();
    WorkerMessage message;
    message.type = WorkerMessageType::kAttach;
    message.peeked = static_cast<uint32_t>(peeked);
    message.index = attach.index;
    message.descriptor = std::move(socket);
    return send_worker_message(worker.control.get(), message, Clock::now()).ok();
  }
  return false;
}

bool WorkerPool::call_on(const wire::PeerHello& hello, size_t peeked, UniqueFd* socket) {
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.index != hello.worker ||
        CRYPTO_memcmp(worker.client, hello.session, sizeof hello.session) != 0) {
      continue;
    }
    WorkerMessage message;
    message.type = WorkerMessageType::kPeer;
    message.peeked = static_cast<uint32_t>(peeked);
    message.body = wire::encode(hello);
    return pass_on(worker, std::move(message), socket);
  }
  return false;
}

bool WorkerPool::look_up(const wire::ExportQuery& query, uid_t user, size_t peeked,
                         UniqueFd* socket) {
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || user_of(worker) != user ||
        CRYPTO_memcmp(worker.exports.data(), query.place.data(), query.place.size()) != 0) {
      continue;
    }
    WorkerMessage message;
    message.type = WorkerMessageType::kLookup;
    message.peeked = static_cast<uint32_t>(peeked);
    message.body = wire::encode(query);
    return pass_on(worker, std::move(message), socket);
  }
  return false;
}

bool WorkerPool::pass_on(Worker& worker, WorkerMessage message, UniqueFd* socket) {
  message.descriptor = std::move(*socket);
  if (send_worker_message(worker.control.get(), message, Clock::now()).ok()) return true;
  *socket = std::move(message.descriptor);  // it has just died, or does not read
  return false;
}

uid_t WorkerPool::user_of(const Worker& worker) {
  return ::geteuid() == 0 ? worker.identity.uid.value_or(0) : ::geteuid();
}

bool WorkerPool::runs_as(uid_t user) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.is(State::kBusy) && user_of(worker) == user;
  });
}

void WorkerPool::end_leased(const std::string& lease, const std::string& why) {
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.identity.lease != lease) continue;
    worker.lease_ended = true;
    end(worker, why);
  }
  lease_totals_.erase(lease);
}

Status WorkerPool::end_session(uint32_t worker_pid,
                               const std::function<bool(const Identity& owner)>& may_end,
                               const std::string& why) {
  for (Worker& worker : workers_) {
    if (worker.pid != static_cast<pid_t>(worker_pid) || !worker.is(State::kBusy)) continue;
    if (!may_end(worker.identity)) break;
    end(worker, why);
    return {};
  }
  return Status(Code::kNotFound, "no session of yours has worker " + std::to_string(worker_pid) +
                                     " here: rcuda-smi lists the workers of sessions");
}

void WorkerPool::end(Worker& worker, const std::string& why) {
  if (worker.kill_at) return;
  WorkerMessage message;
  message.type = WorkerMessageType::kStop;
  const auto* text = reinterpret_cast<const std::byte*>(why.data());
  message.body.assign(text, text + why.size());
  (void)send_worker_message(worker.control.get(), message, Clock::now());
  worker.kill_at = Clock::now() + 2 * settings_.stop_timeout.get();
}

std::vector<Leases::Use> WorkerPool::uses() const {
  std::vector<Leases::Use> uses;
  for (const Worker& worker : workers_) {
    // While a worker is being cleaned, the memory of its session may still be there.
    const bool uses_devices = worker.is(State::kBusy) || worker.is(State::kCleaning);
    if (uses_devices) uses.push_back({worker.identity, worker.session.devices});
  }
  return uses;
}

void WorkerPool::add_descriptors(std::vector<pollfd>* items) const {
  for (const Worker& worker : workers_) {
    if (!worker.ask_at) items->push_back({worker.process.get(), POLLIN, 0});
    if (worker.is_read()) items->push_back({worker.reports.get(), POLLIN, 0});
    const int log = worker.log.descriptor(Clock::now());
    if (log >= 0 && !worker.ask_at) items->push_back({log, POLLIN, 0});
  }
}

void WorkerPool::handle(const std::vector<pollfd>& items) {
  const auto is_ready = [&](int descriptor) {
    return std::any_of(items.begin(), items.end(), [&](const pollfd& item) {
      return descriptor >= 0 && item.fd == descriptor && item.revents != 0;
    });
  };
  const Clock::time_point now = Clock::now();
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    if (is_ready(worker->log.descriptor(now))) worker->log.relay(now);
    if (worker->is_read() && is_ready(worker->reports.get())) read(*worker);
    if (worker->is(State::kStarting) && now - worker->since > settings_.start_timeout.get()) {
      did_not_start(
          *worker, Status(Code::kTimeout, "a worker did not initialise its driver in time"), false);
      ::kill(worker->pid, SIGKILL);
      // It may be stuck in the driver and live on. Another one takes its place.
      worker->state = State::kEnding;
      worker->hangs = true;
    }
    if (now >= worker->look_at) worker->look_at = enforce_time(*worker, now);
    if (worker->kill_at && now >= *worker->kill_at) {
      RCUDA_WARN("worker %d did not end its session in time and is killed", worker->pid);
      ::kill(worker->pid, SIGKILL);
      worker->kill_at.reset();
    }
    const bool ended = worker->ask_at ? now >= *worker->ask_at : is_ready(worker->process.get());
    const bool gone = ended && reap(*worker);
    if (gone) orphans_at_ = now;
    worker = gone ? workers_.erase(worker) : std::next(worker);
  }
  if (adopts_ && orphans_at_ && now >= *orphans_at_) end_orphans();
}

void WorkerPool::read(Worker& worker) {
  Result<std::optional<WorkerMessage>> message = worker.reader.read(worker.reports.get());
  if (!message.ok()) {
    worker.heard = true;  // it died; its pidfd reports that too
  } else if (*message && worker.is(State::kStarting)) {
    read_start(worker, **message);
  } else if (*message) {
    read_session(worker, **message);
  }
}

void WorkerPool::read_start(Worker& worker, const WorkerMessage& message) {
  if (message.type == WorkerMessageType::kReady) {
    Result<WorkerReady> ready = wire::decode<WorkerReady>(message.body);
    if (!ready.ok()) {
      worker.said_why = true;
      return did_not_start(
          worker,
          Status(ready.status())
              .with_context("another build of rcuda was installed while the server "
                            "ran: restart rcuda-server"),
          true);
    }
    worker.state = State::kIdle;
    if (!ready->warning.empty() && ready->warning != warning_) {
      RCUDA_WARN("%s", ready->warning.c_str());
      warning_ = ready->warning;
    }
    const bool scout = !worker.devices;
    if (scout) device_sets_.learn(*ready);
    if (scout || !device_sets_.per_session()) offer_ = std::move(ready).value();
    failures_ = 0;
    last_failure_ = {};
    lasting_.reset();
    crash_.reset();
    ++totals_.worker_starts;
    totals_.worker_start_us += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - worker.since).count());
    RCUDA_DEBUG("worker %d is ready after %.0f ms", worker.pid,
                std::chrono::duration<double, std::milli>(Clock::now() - worker.since).count());
    if (scout) stop(worker);
  } else if (message.type == WorkerMessageType::kFailed) {
    worker.said_why = true;
    did_not_start(
        worker,
        Status(Code::kUnavailable, std::string(reinterpret_cast<const char*>(message.body.data()),
                                               message.body.size())),
        message.index == 1);
  }
}

bool WorkerPool::reap(Worker& worker) {
  int status = 0;
  if (::waitpid(worker.pid, &status, WNOHANG) == 0) {
    worker.ask_at = Clock::now() + kCollectPause;
    return false;
  }
  worker.ask_at.reset();
  worker.log.finish(Clock::now());
  // Its message about the failure may still be in the pipe.
  if (worker.is(State::kStarting)) read(worker);
  const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (worker.is(State::kBusy)) {
    // Its report of the session's end may still be in the pipe.
    if (!worker.totals) read(worker);
    record_end(worker, !worker.ended_by.empty() ? worker.ended_by
                       : worker.totals          ? worker.totals->outcome
                                                : outcome(status));
    if (clean) {
      RCUDA_DEBUG("worker %d ended with its session", worker.pid);
    } else {
      report_end(worker, status);
    }
  } else if (worker.is(State::kStarting) && !worker.said_why) {
    const bool lasts = ends_again(worker, status);
    did_not_start(worker,
                  Status(Code::kUnavailable, "a worker ended with " + outcome(status) +
                                                 " before it was ready: see the server's log"),
                  lasts);
  } else if (worker.is(State::kCleaning)) {
    RCUDA_DEBUG("worker %d is not clean and ended with %s", worker.pid, outcome(status).c_str());
  } else if (worker.is(State::kIdle)) {
    // SIGTERM and SIGINT are also what a terminal or an init system sends to the server itself and
    // to its workers.
    const bool asked =
        WIFSIGNALED(status) && (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM);
    RCUDA_LOG(asked ? LogLevel::kInfo : LogLevel::kWarn, "idle worker %d ended with %s", worker.pid,
              outcome(status).c_str());
  }
  return true;
}

void WorkerPool::record_end(const Worker& worker, const std::string& outcome) {
  count_end(worker);
  if (audit_) audit_->ended(audited(worker), worker.totals, outcome);
}

// A session that has ended badly.
void WorkerPool::report_end(const Worker& worker, int status) {
  const OutOfMemory events = worker.cgroup ? worker.cgroup->out_of_memory() : OutOfMemory();
  if (events.kills > 0 && events.limit_hits > 0) {
    RCUDA_WARN(
        "worker %d, which served a session of %s, was killed: the session needed more host memory "
        "than the %llu MiB of RCUDA_SERVER_SESSION_MEMORY; other sessions go on",
        worker.pid, worker.identity.user.c_str(),
        static_cast<unsigned long long>(settings_.session_memory.get() >> 20));
  } else if (events.kills > 0) {
    RCUDA_WARN(
        "worker %d, which served a session of %s, was killed: this machine ran out of memory; "
        "RCUDA_SERVER_SESSION_MEMORY limits what a session can take",
        worker.pid, worker.identity.user.c_str());
  } else {
    RCUDA_WARN("worker %d, which served a session, ended with %s", worker.pid,
               outcome(status).c_str());
  }
}

WorkerPool::Clock::time_point WorkerPool::next_deadline() const {
  const Clock::time_point now = Clock::now();
  Clock::time_point next = reuses() ? Clock::time_point::max() : demand_.next_change(now);
  if (adopts_ && orphans_at_) next = std::min(next, *orphans_at_);
  if (retry_at_ > now) next = std::min(next, retry_at_);
  if (waiting_ > 0 && counted_at() > now) next = std::min(next, counted_at());
  for (const Worker& worker : workers_) {
    if (worker.ask_at) next = std::min(next, *worker.ask_at);
    if (worker.log.resumes_at() > now) next = std::min(next, worker.log.resumes_at());
    if (waiting_ > 0 && is_clean_soon(worker)) {
      next = std::min(next, clean_by(worker));
    }
    if (worker.is(State::kIdle) && worker.is_kept()) {
      next = std::min(next, worker.since + settings_.pool_time.get());
    }
    if (worker.kill_at) next = std::min(next, *worker.kill_at);
    if (worker.is(State::kBusy)) next = std::min(next, worker.look_at);
    if (worker.is(State::kStarting)) {
      next = std::min(next, worker.since + settings_.start_timeout.get());
    }
  }
  return next;
}

void WorkerPool::shutdown() {
  for (Worker& worker : workers_) stop(worker);
  collect(Clock::now() + settings_.stop_timeout.get());
  for (Worker& worker : workers_) {
    RCUDA_WARN("worker %d did not end in time and is killed", worker.pid);
    ::kill(worker.pid, SIGKILL);
  }
  collect(Clock::now() + settings_.stop_timeout.get());
  for (const Worker& worker : workers_) {
    RCUDA_WARN(
        "worker %d was killed and does not end: it is stuck in the GPU's driver, or a debugger "
        "holds it; it is left behind",
        worker.pid);
    if (!worker.is_busy()) continue;
    record_end(worker, worker.totals ? worker.totals->outcome : "killed, but its process remains");
  }
  workers_.clear();
}

// Handles the workers as usual until all have ended, or until the deadline.
void WorkerPool::collect(Clock::time_point deadline) {
  while (!workers_.empty() && Clock::now() < deadline) {
    std::vector<pollfd> items;
    add_descriptors(&items);
    (void)::poll(items.data(), items.size(), poll_timeout_ms(std::min(deadline, next_deadline())));
    handle(items);
  }
}

}  // namespace rcuda::server
