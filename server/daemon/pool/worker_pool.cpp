#include "server/daemon/pool/worker_pool.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <span>
#include <unordered_set>

#include <openssl/crypto.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/random_bytes.h"
#include "common/base/socket_io.h"
#include "common/base/units.h"
#include "common/transport/media.h"

namespace rcuda::server {
namespace {

constexpr auto kCollectPause = std::chrono::milliseconds(10);
constexpr size_t kMostEnded = 256;

// Sends a worker the memory that it shares with the daemon, and then the session itself.
Status send_session(int control, const ToWorker& start, const Admission::Permit* permit,
                    const WorkPage& work, int socket) {
  const auto now = WorkerPool::Clock::now();
  for (const int ledger : permit ? permit->ledgers() : std::vector<int>()) {
    RCUDA_RETURN_IF_ERROR(send_to_worker(control, LedgerMemory(), ledger, now));
  }
  RCUDA_RETURN_IF_ERROR(send_to_worker(control, WorkMemory(), work.descriptor(), now));
  return send_to_worker(control, start, socket, now);
}

// Describes how a process has ended, by its status from waitpid().
std::string outcome_of(std::optional<int> process) {
  if (!process) return "no status (a debugger holds its process)";
  const int status = *process;
  if (WIFEXITED(status)) return "exit status " + std::to_string(WEXITSTATUS(status));
  return std::string("signal ") + ::strsignal(WTERMSIG(status));
}

// kUnavailable if the group is missing, because another program may create it later.
Status unusable_cgroup(const Settings& settings, const Status& why) {
  const bool is_missing = ::access(settings.cgroup.get().c_str(), F_OK) != 0 && errno == ENOENT;
  return Status(is_missing ? Code::kUnavailable : Code::kInvalidArgument,
                "RCUDA_SERVER_CGROUP=" + settings.cgroup.get() + ": " + why.context());
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

Status WorkerPool::check_cgroup(const Settings& settings) {
  const std::string& choice = settings.cgroup.get();
  if (choice == "none" || choice == "auto") return {};
  const Status usable = Cgroups::check(choice);
  return usable.ok() ? usable : unusable_cgroup(settings, usable);
}

Status WorkerPool::prepare() {
  const std::string& choice = settings_.cgroup.get();
  if (choice == "none") return {};
  Result<std::unique_ptr<Cgroups>> cgroups = Cgroups::open(choice);
  if (cgroups.ok()) {
    cgroups_ = std::move(cgroups).value();
    RCUDA_INFO("each session has a cgroup of its own below %s", cgroups_->text().c_str());
    return {};
  }
  if (choice != "auto") return unusable_cgroup(settings_, cgroups.status());
  const bool limited = settings_.session_memory.get() || settings_.session_processes.get();
  RCUDA_LOG(limited || ::geteuid() == 0 ? LogLevel::kWarn : LogLevel::kDebug,
            "no cgroup is delegated to this server (%s): limits of memory and processes apply to "
            "each worker's process only (setrlimit). With systemd, set Delegate=yes; "
            "RCUDA_SERVER_CGROUP=none turns this message off",
            cgroups.status().message().c_str());
  return {};
}

size_t WorkerPool::count(State state) const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [&](const Worker& w) { return w.is(state); }));
}

// A session runs code of its client. So if the server runs as root, the worker first becomes the
// client's user, and this machine must know the user's uid.
Status WorkerPool::check_user(const Identity& identity) {
  if (identity.groups.size() > SessionGrant::kMostGroups) {
    return Status(Code::kInvalidArgument, "user " + identity.user + " is in " +
                                              std::to_string(identity.groups.size()) +
                                              " groups, and a session can have at most " +
                                              std::to_string(SessionGrant::kMostGroups) +
                                              ": remove the user from some of them");
  }
  if (::geteuid() != 0 || identity.uid) return {};
  return Status(Code::kDenied, "user " + identity.user +
                                   " is not known on the server's machine, and a server of root "
                                   "runs each session as its user: create the user there, or start "
                                   "rcuda-server as another user than root");
}

bool WorkerPool::has_worker_for(const Waiting& client) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.is(State::kIdle) && suits(worker, client);
  });
}

Result<bool> WorkerPool::assign(const wire::Hello& hello, const Identity& identity,
                                const std::optional<tls::Key>& key, size_t peeked, UniqueFd* socket,
                                std::unique_ptr<Admission::Permit>* permit) {
  RCUDA_RETURN_IF_ERROR(check_user(identity));
  RCUDA_ASSIGN_OR_RETURN(WorkPage work, WorkPage::make());
  ToWorker message = make_start(hello, identity, permit->get());
  auto& start = std::get<SessionStart>(message);
  start.grant.key = key;
  start.peeked = static_cast<uint32_t>(peeked);
  RCUDA_RETURN_IF_ERROR(fill_randomly(start.grant.exporter));
  RCUDA_RETURN_IF_ERROR(fill_randomly(start.token));
  const Waiting client{&hello, start.grant.limits.sm_percent};
  for (Worker& worker : workers_) {
    if (!worker.is(State::kIdle) || !suits(worker, client)) continue;
    const Status sent =
        send_session(worker.control.get(), message, permit->get(), work, socket->get());
    if (!sent.ok()) {
      // The worker has just died, or does not read. It may have received a part of the session.
      RCUDA_WARN("worker %d did not receive its session and is killed: %s", worker.pid,
                 sent.message().c_str());
      ::kill(worker.pid, SIGKILL);
      enter(worker, State::kStopping);
      if (sent.code() == Code::kInvalidArgument) return sent;  // no worker can take this session
      continue;
    }
    socket->reset();
    worker.permit = std::move(*permit);
    worker.work = std::move(work);
    begin_session(worker, start, identity);
    start.grant.key.reset();
    worker.start = encode_message(message);
    return true;
  }
  return false;
}

// Records that the worker has received the session.
void WorkerPool::begin_session(Worker& worker, const SessionStart& start,
                               const Identity& identity) {
  enter(worker, State::kBusy);
  device_sets_.used(worker.devices);
  demand_.taken(worker.since);
  set_session(worker, start, identity);
  if (audit_) audit_->began(audited(worker));
}

void WorkerPool::set_session(Worker& worker, const SessionStart& start,
                             const Identity& identity) const {
  const wire::Hello& hello = start.hello;
  worker.exports = wire::export_place(start.grant.owner, start.grant.exporter);
  std::ranges::copy(start.token, worker.token);
  worker.name = wire::attach_name(start.token);
  worker.attempts.fill(0);
  worker.reconnects = hello.reconnect_ms != 0 && settings_.reconnect_timeout.get().count() != 0;
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

SessionStart WorkerPool::make_start(const wire::Hello& hello, const Identity& identity,
                                    const Admission::Permit* permit) const {
  SessionStart start;
  start.hello = hello;
  SessionGrant& grant = start.grant;
  grant.user = identity.user;
  grant.owner = owner_of(identity, hello);
  grant.port = port_;
  grant.uid = identity.uid;
  grant.gid = identity.gid;
  grant.groups = identity.groups;
  grant.own_user = identity.uid == ::geteuid() && identity.method != "insecure";
  if (permit) {
    grant.allowances = permit->allowances();
    grant.limits = permit->limits();
  }
  const auto in_cgroup = [&](const char* controller) {
    return cgroups_ && cgroups_->has(controller);
  };
  if (!in_cgroup("memory")) grant.most_data_bytes = settings_.session_memory.get();
  if (!in_cgroup("pids")) {
    grant.most_processes = static_cast<uint64_t>(settings_.session_processes.get());
  }
  return start;
}

Status WorkerPool::attach(const wire::Attach& attach, size_t peeked, UniqueFd socket) {
  if (attach.index < wire::kMostSockets && attach.attempt != UINT32_MAX) {
    for (Worker& worker : workers_) {
      if (!worker.is(State::kBusy) || (attach.attempt != 0 && !worker.reconnects) ||
          CRYPTO_memcmp(worker.name.data(), attach.session, worker.name.size()) != 0) {
        continue;
      }
      uint32_t& least = worker.attempts[attach.index];
      if (attach.attempt < least) continue;
      const wire::AttachToken token =
          wire::attach_token(worker.token, attach.index, attach.attempt);
      if (CRYPTO_memcmp(token.data(), attach.token, token.size()) != 0) continue;
      least = attach.attempt + 1;
      worker.attempted_at = Clock::now();
      if (pass_on(worker, FurtherSocket{attach, static_cast<uint32_t>(peeked)}, &socket)) return {};
      return {Code::kUnavailable,
              "the session's worker cannot accept the connection now; try again"};
    }
  }
  const auto ended = std::ranges::find_if(ended_, [&](const auto& session) {
    return CRYPTO_memcmp(session.first.data(), attach.session, session.first.size()) == 0;
  });
  if (ended != ended_.end()) {
    return {Code::kNotFound, "the session has ended: " + ended->second};
  }
  return {Code::kNotFound,
          "the session has ended, or does not accept this connection: see the server's log"};
}

bool WorkerPool::pass_on(const wire::PeerHello& hello, size_t peeked, UniqueFd* socket) {
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.index != hello.worker ||
        CRYPTO_memcmp(worker.client, hello.session, sizeof hello.session) != 0) {
      continue;
    }
    return pass_on(worker, PeerCall{hello, static_cast<uint32_t>(peeked)}, socket);
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
    return pass_on_lookup(worker, ExportCall{query, static_cast<uint32_t>(peeked)}, socket);
  }
  return false;
}

bool WorkerPool::pass_on(Worker& worker, const ToWorker& message, UniqueFd* socket) {
  const Status sent = send_to_worker(worker.control.get(), message, socket->get(), Clock::now());
  if (sent.ok()) socket->reset();
  return sent.ok();  // if not, the worker has just died, or does not read
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
    stop_session(worker, why);
  }
  lease_totals_.erase(lease);
}

Status WorkerPool::end_session(uint32_t worker_pid, const MayUse& may_end, const std::string& why) {
  RCUDA_ASSIGN_OR_RETURN(Worker* const worker, find_session(worker_pid, may_end));
  stop_session(*worker, why);
  return {};
}

Result<WorkerPool::Worker*> WorkerPool::find_session(uint32_t worker_pid, const MayUse& may_use) {
  for (Worker& worker : workers_) {
    if (worker.pid != static_cast<pid_t>(worker_pid) || !worker.is(State::kBusy)) continue;
    if (!may_use(worker.identity)) break;
    return &worker;
  }
  return Status(Code::kNotFound, "no session of yours has worker " + std::to_string(worker_pid) +
                                     " here: rcuda-smi lists the workers of sessions");
}

void WorkerPool::stop_session(Worker& worker, const std::string& why) {
  if (worker.kill_at) return;
  (void)send_to_worker(worker.control.get(), StopRequest{why}, -1, Clock::now());
  worker.ended_by = why;
  worker.kill_at = Clock::now() + 2 * settings_.stop_timeout.get();
}

std::vector<Leases::Use> WorkerPool::uses() const {
  std::vector<Leases::Use> uses;
  for (const Worker& worker : workers_) {
    if (!worker.is(State::kBusy)) continue;
    uses.push_back({worker.identity, worker.session.devices, lost_client(worker)});
  }
  return uses;
}

void WorkerPool::enter(Worker& worker, State state, const std::string& outcome) {
  const Clock::time_point now = Clock::now();
  assert(may_follow(worker.state, state));
  RCUDA_DEBUG("worker %d: %s -> %s after %s", worker.pid, to_string(worker.state), to_string(state),
              rounded_time_text(now - worker.since).c_str());
  if (worker.is(State::kBusy)) {
    count_end(worker);
    ++room_changes_;
    if (audit_) audit_->ended(audited(worker), worker.totals, outcome);
    worker.permit.reset();
    if (worker.reconnects && !worker.ended_by.empty()) {
      ended_.emplace_back(worker.name, worker.ended_by);
      if (ended_.size() > kMostEnded) ended_.pop_front();
    }
  }
  worker.state = state;
  worker.since = now;
  worker.reads_reports = false;
  worker.kill_at.reset();
}

void WorkerPool::add_descriptors(std::vector<pollfd>* items) const {
  for (const Worker& worker : workers_) {
    if (worker.is(State::kEnded)) continue;
    items->push_back({worker.process.get(), POLLIN, 0});
    if (reads(worker)) items->push_back({worker.reports.get(), POLLIN, 0});
    const int log = worker.log.descriptor(Clock::now());
    if (log >= 0) items->push_back({log, POLLIN, 0});
  }
  for (const ParkHelper& helper : helpers_) items->push_back({helper.descriptor(), POLLIN, 0});
}

void WorkerPool::handle(std::span<const pollfd> items) {
  std::unordered_set<int> ready;
  for (const pollfd& item : items) {
    if (item.revents != 0) ready.insert(item.fd);
  }
  const Clock::time_point now = Clock::now();
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    if (ready.contains(worker->log.descriptor(now))) worker->log.relay(now);
    if (reads(*worker) && ready.contains(worker->reports.get())) read(*worker);
    if (worker->is(State::kStarting) && now - worker->since > settings_.start_timeout.get()) {
      did_not_start(*worker,
                    Status(Code::kTimeout, "a worker did not initialise its driver within " +
                                               settings_.start_timeout.text() +
                                               " (RCUDA_SERVER_START_TIMEOUT)"),
                    false);
      ::kill(worker->pid, SIGKILL);
      enter(*worker, State::kHanging);  // another worker takes its place
    }
    if (worker->is(State::kBusy) && now >= worker->look_at) {
      worker->look_at = std::min(enforce_time(*worker, now), send_lost_ranks(*worker));
    }
    if (worker->kill_at && now >= *worker->kill_at) {
      RCUDA_WARN("worker %d did not end its session in time and is killed", worker->pid);
      ::kill(worker->pid, SIGKILL);
      worker->kill_at.reset();
    }
    const bool ended =
        worker->is(State::kEnded) ? now >= worker->look_at : ready.contains(worker->process.get());
    const bool gone = ended && reap(*worker);
    if (gone) orphans_at_ = now;
    worker = gone ? workers_.erase(worker) : std::next(worker);
  }
  if (adopts_ && orphans_at_ && now >= *orphans_at_) end_orphans();
}

void WorkerPool::read(Worker& worker) {
  Result<std::optional<ToDaemon>> message = worker.reader.read(worker.reports.get());
  if (!message.ok()) {
    worker.reads_reports = false;  // the worker died; its pidfd reports that too
    worker.reports.reset();
  } else if (*message && worker.is(State::kStarting)) {
    read_start(worker, std::move(**message));
  } else if (auto* const totals = *message ? std::get_if<SessionTotals>(&**message) : nullptr) {
    worker.totals = std::move(*totals);
  } else if (auto* const answer = *message ? std::get_if<ParkAnswer>(&**message) : nullptr) {
    if (worker.is(State::kBusy)) read_park(worker, *answer);
  }
}

void WorkerPool::read_start(Worker& worker, ToDaemon message) {
  if (const auto* failure = std::get_if<StartFailure>(&message)) {
    const Status status(Code::kUnavailable, failure->reason);
    const bool is_full = failure->full_device != StartFailure::kNoDevice;
    // A larger base does not help if a GPU is full.
    is_full ? failed(status, failure->lasts, worker.devices, worker.sm_percent)
            : did_not_start(worker, status, failure->lasts);
    failed_setting_ = settings_.registry.find_key(failure->setting);
    if (is_full && settings_.oversubscribe.get() > 1) {
      start_wish_ = {failure->full_device, room_changes_};
    }
    return enter(worker, State::kStopping);
  }
  auto* const ready = std::get_if<WorkerReady>(&message);
  if (!ready) return;
  ++totals_.worker_starts;
  totals_.worker_start_us += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - worker.since).count());
  enter(worker, State::kIdle);
  if (!ready->warning.empty() && ready->warning != warning_) {
    RCUDA_WARN("%s", ready->warning.c_str());
    warning_ = ready->warning;
  }
  const bool scout = !worker.devices;
  if (scout) device_sets_.learn(*ready);
  if (ready->nccl.empty()) ready->nccl = offer_.nccl;
  asks_nccl_ = ready->nccl.empty();
  if (scout || !device_sets_.per_session()) offer_ = std::move(*ready);
  failures_ = 0;
  start_wish_.reset();
  last_failure_ = {};
  lasting_.reset();
  crash_.reset();
  if (scout) stop_worker(worker);
}

bool WorkerPool::reap(Worker& worker) {
  int status = 0;
  const bool reaped = ::waitpid(worker.pid, &status, WNOHANG) != 0;
  // A debugger of the worker gets the status first, and usually passes it on immediately.
  if (!reaped && !worker.is(State::kEnded)) {
    const Clock::time_point now = Clock::now();
    if (!worker.held_since) worker.held_since = now;
    if (now < *worker.held_since + kCollectPause) return false;
  }
  if (!worker.is(State::kEnded)) handle_end(worker, reaped ? std::optional(status) : std::nullopt);
  worker.look_at = Clock::now() + kCollectPause;
  return reaped;
}

void WorkerPool::handle_end(Worker& worker, std::optional<int> status) {
  worker.log.finish(Clock::now());
  // Reads the last report, which may follow answers that the daemon has not read.
  constexpr int kMostReports = 8;
  const bool reports = worker.is(State::kStarting) || worker.is(State::kBusy);
  for (int i = 0; reports && i < kMostReports && !worker.totals; ++i) read(worker);
  log_end(worker, status);
  if (worker.is(State::kBusy)) report_lost_ranks(worker);
  forget_shares(worker);
  enter(worker, State::kEnded,
        !worker.ended_by.empty() ? worker.ended_by + worker.ended_for
        : worker.totals          ? worker.totals->outcome
                                 : outcome_of(status));
}

void WorkerPool::log_end(const Worker& worker, std::optional<int> status) {
  const std::string how = outcome_of(status);
  if (worker.is(State::kStarting)) {
    const bool lasts = ends_again(worker, status);
    did_not_start(worker,
                  Status(Code::kInternal, "a worker ended with " + how +
                                              " before it was ready: see the server's log"),
                  lasts);
  } else if (worker.is(State::kIdle)) {
    // A terminal or an init system sends SIGINT or SIGTERM to the server and its workers together.
    const bool asked = status && WIFSIGNALED(*status) &&
                       (WTERMSIG(*status) == SIGINT || WTERMSIG(*status) == SIGTERM);
    RCUDA_LOG(asked ? LogLevel::kInfo : LogLevel::kWarn, "idle worker %d ended with %s", worker.pid,
              how.c_str());
  }
  if (!worker.is(State::kBusy) || (status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0)) {
    return;
  }
  // The session did not end normally.
  const OutOfMemory events = worker.cgroup ? worker.cgroup->out_of_memory() : OutOfMemory();
  if (events.kills > 0 && events.limit_hits > 0) {
    RCUDA_WARN(
        "worker %d, which served a session of %s, was killed: the session needed more host memory "
        "than the %s of RCUDA_SERVER_SESSION_MEMORY; other sessions go on",
        worker.pid, worker.identity.user.c_str(), settings_.session_memory.text().c_str());
  } else if (events.kills > 0) {
    RCUDA_WARN(
        "worker %d, which served a session of %s, was killed: this machine ran out of memory; "
        "RCUDA_SERVER_SESSION_MEMORY limits what a session can take",
        worker.pid, worker.identity.user.c_str());
  } else {
    RCUDA_WARN("worker %d, which served a session of %s, ended with %s", worker.pid,
               worker.identity.user.c_str(), how.c_str());
  }
}

WorkerPool::Clock::time_point WorkerPool::next_deadline() const {
  const Clock::time_point now = Clock::now();
  Clock::time_point next = std::min(demand_.next_change(now), next_parking());
  if (adopts_ && orphans_at_) next = std::min(next, *orphans_at_);
  if (retry_at_ > now) next = std::min(next, retry_at_);
  for (const Worker& worker : workers_) {
    if (worker.log.resumes_at() > now) next = std::min(next, worker.log.resumes_at());
    if (worker.kill_at) next = std::min(next, *worker.kill_at);
    if (worker.is(State::kBusy) || worker.is(State::kEnded)) next = std::min(next, worker.look_at);
    if (worker.is(State::kBusy) && worker.since + PoolDemand::kYoung > now) {
      next = std::min(next, worker.since + PoolDemand::kYoung);  // its replacement is due
    }
    if (worker.is(State::kStarting)) {
      next = std::min(next, worker.since + settings_.start_timeout.get());
    }
  }
  return next;
}

void WorkerPool::shutdown(const std::string& why) {
  helpers_.clear();  // kills the helpers; their workers end as well
  for (Worker& worker : workers_) stop_worker(worker, why);
  collect(Clock::now() + settings_.stop_timeout.get());
  for (Worker& worker : workers_) {
    RCUDA_WARN("worker %d did not end in time and is killed", worker.pid);
    ::kill(worker.pid, SIGKILL);
  }
  collect(Clock::now() + settings_.stop_timeout.get());
  for (Worker& worker : workers_) {
    RCUDA_WARN(
        "worker %d was killed but does not end, and remains: it is stuck in the GPU's driver, or "
        "a debugger holds it",
        worker.pid);
    if (worker.is(State::kEnded)) continue;
    enter(worker, State::kEnded,
          worker.totals ? worker.totals->outcome : "killed, but its process remains");
  }
  workers_.clear();
}

// Handles the workers as usual until all have ended, or until the deadline. Does not continue to
// park and wake sessions, so next_deadline() may be in the past; hence kLeastPause.
void WorkerPool::collect(Clock::time_point deadline) {
  constexpr auto kLeastPause = std::chrono::milliseconds(10);
  while (!workers_.empty() && Clock::now() < deadline) {
    std::vector<pollfd> items;
    add_descriptors(&items);
    const Clock::time_point next = std::max(next_deadline(), Clock::now() + kLeastPause);
    (void)::poll(items.data(), items.size(), poll_timeout_ms(std::min(deadline, next)));
    handle(items);
  }
}

}  // namespace rcuda::server
