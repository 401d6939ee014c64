// Failures of workers. After failed starts the pool retries after growing pauses, and decides which
// clients need not wait for a retry. It also enforces the rules that a worker could break: the
// limits of a session's time, and that no process of a session outlives its worker.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <unordered_set>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

constexpr auto kLongestPause = std::chrono::seconds(30);
constexpr auto kFullPause = std::chrono::milliseconds(100);
constexpr auto kOrphanPause = std::chrono::milliseconds(10);
constexpr auto kStuckPause = std::chrono::milliseconds(1000);

}  // namespace

// A single crash may have a temporary cause, such as a shortage of memory. So the failure counts as
// lasting only after a second crash, of a worker that started after the first crash. A worker that
// started earlier may have crashed for the same temporary cause.
bool WorkerPool::ends_again(const Worker& worker, std::optional<int> status) {
  const bool killed = !status || (WIFSIGNALED(*status) &&
                                  (WTERMSIG(*status) == SIGKILL || WTERMSIG(*status) == SIGTERM));
  if (killed) return false;
  const bool again = crash_ && crash_->devices == worker.devices && worker.since >= crash_->at;
  if (!crash_ || crash_->devices != worker.devices) crash_ = {worker.devices, Clock::now()};
  return again;
}

// Sends the worker its lost_ranks. Returns when to try again if the worker's socket is full, and
// max() if nothing is left to send.
WorkerPool::Clock::time_point WorkerPool::send_lost_ranks(Worker& worker) {
  if (worker.lost_ranks.empty()) return Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  const RanksLost message{worker.lost_ranks};
  const Status sent = send_to_worker(worker.control.get(), message, -1, now);
  if (sent.code() == Code::kTimeout) return now + kFullPause;
  worker.lost_ranks.clear();  // also if the worker has just ended
  return Clock::time_point::max();
}

// Reports the ranks of a dead worker to the workers with other ranks of the same communicators.
// NCCL itself does not notice over NVLink that another process has died.
void WorkerPool::report_lost_ranks(const Worker& dead) {
  if (!dead.work) return;
  const std::vector<uint64_t> tags_of_dead = dead.work->communicators();
  if (tags_of_dead.empty()) return;
  const std::unordered_set<uint64_t> lost(tags_of_dead.begin(), tags_of_dead.end());
  for (Worker& worker : workers_) {
    if (&worker == &dead || !worker.is(State::kBusy) || !worker.work) continue;
    // A worker can write any tags, also those of other users, but it must not be able to end ranks
    // of other users.
    if (!same_user(worker.identity, dead.identity)) continue;
    std::vector<uint64_t>& tags = worker.lost_ranks;
    for (const uint64_t tag : worker.work->communicators()) {
      if (lost.contains(tag)) tags.push_back(tag);
    }
    std::sort(tags.begin(), tags.end());
    tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
    const Clock::time_point again = send_lost_ranks(worker);
    if (again == Clock::time_point::max()) continue;
    RCUDA_WARN(
        "worker %d does not read its messages: the server reports lost NCCL ranks to it later",
        worker.pid);
    worker.look_at = std::min(worker.look_at, again);
  }
}

void WorkerPool::did_not_start(const Worker& worker, const Status& status, bool is_lasting) {
  // The base may have too few addresses for the driver to start.
  doublings_ = std::min(std::max(doublings_, worker.base.doublings + 1), kMostDoublings);
  failed(status, is_lasting, worker.devices, worker.sm_percent);
}

void WorkerPool::failed(const Status& status, bool is_lasting, const DeviceSets::Key& devices,
                        uint32_t sm_percent) {
  last_failure_ = status;
  failed_setting_ = nullptr;
  lasting_.reset();
  if (is_lasting) lasting_ = {devices, sm_percent};
  ++failures_;
  ++totals_.worker_failures;
  const auto pause = std::min<Clock::duration>(
      kLongestPause, std::chrono::milliseconds(100) * (1 << std::min(failures_, 9)));
  retry_at_ = Clock::now() + pause;
  if (failures_ == 1 && is_serving_)
    RCUDA_ERROR("a worker did not start; the server tries again: %s", status.context().c_str());
}

Status WorkerPool::start_failure() const {
  if (last_failure_.ok() || !failed_setting_) return last_failure_;
  return failed_setting_->at_origin(Status(Code::kInvalidArgument, last_failure_.context()));
}

Status WorkerPool::lasting_failure(const Waiting& client) const {
  // After the pause, the next refill() tries again for the client.
  if (!lasting_ || Clock::now() >= retry_at_) return {};
  // The failure of a scout (device_sets.h) concerns every client.
  const bool is_scout = !lasting_->devices;
  if (!is_scout && (*lasting_->devices != device_sets_.key_of(client.hello->devices) ||
                    lasting_->sm_percent != client.sm_percent)) {
    return {};
  }
  const bool one_comes = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.is(State::kStarting) && (!worker.devices || suits(worker, client));
  });
  if (one_comes) return {};
  return Status(last_failure_).with_context("the server cannot start a worker");
}

// Normally the worker itself ends a session that exceeds a limit (SessionTime, EndWatch). So the
// daemon kills the worker only after a grace. The worker's clock starts only when the client has
// connected, so the grace includes handshake_timeout.
WorkerPool::Clock::time_point WorkerPool::enforce_time(Worker& worker, Clock::time_point now) {
  if (!worker.is(State::kBusy) || !worker.permit || worker.kill_at) return Clock::time_point::max();
  const SessionLimits& limits = worker.permit->limits();
  const auto grace = 2 * settings_.stop_timeout.get() + settings_.handshake_timeout.get();
  const auto overdue = [&](const char* limit) {
    worker.ended_by =
        std::string("the server killed the worker: the session exceeded its limit (") + limit +
        "), and the worker did not end the session";
    RCUDA_WARN("worker %d has not ended a session that exceeds its limit (%s), and is killed",
               worker.pid, limit);
    worker.kill_at = now;
    return Clock::time_point::max();
  };
  Clock::time_point next = Clock::time_point::max();
  if (limits.session_time.count() != 0) {
    const auto end = worker.since + limits.session_time + grace;
    if (now >= end) return overdue("session_time");
    next = end;
  }
  if (limits.idle_time.count() == 0 || !worker.work) return next;
  // The worker itself reports idle_end(). A worker that lies gets as much time as a client that is
  // never idle.
  const uint64_t says = worker.work->idle_end();
  const auto most = static_cast<uint64_t>((now + limits.idle_time).time_since_epoch().count());
  if (says == 0 || says == WorkPage::kBusy || says > most) {
    return std::min(next, now + limits.idle_time);
  }
  const auto end = Clock::time_point(std::chrono::nanoseconds(says)) + grace;
  if (now >= end) return overdue("idle_time");
  return std::min(next, end);
}

void WorkerPool::adopt_orphans(std::function<bool(pid_t)> is_other) {
  is_other_ = std::move(is_other);
  // As process 1 of a container, this process also inherits orphans that are not of workers. So it
  // ends no orphans.
  if (cgroups_ || ::getpid() == 1) return;
  // If there are workers already, an earlier build has carried over both the workers and
  // not_of_workers_.
  std::ifstream children("/proc/thread-self/children");
  for (pid_t child = 0; workers_.empty() && children >> child;) not_of_workers_.insert(child);
  adopts_ = ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;
}

// When a worker has ended, its child processes become children of this process, whatever process
// group or session they have made for themselves.
void WorkerPool::end_orphans() {
  orphans_at_.reset();
  std::ifstream children("/proc/thread-self/children");
  for (pid_t child = 0; children >> child;) {
    const bool is_worker = std::any_of(workers_.begin(), workers_.end(),
                                       [&](const Worker& worker) { return worker.pid == child; });
    if (is_worker || has_helper(child) || not_of_workers_.contains(child) || is_other_(child) ||
        ::waitpid(child, nullptr, WNOHANG) != 0) {
      continue;
    }
    const bool is_new = killed_orphans_.insert(child).second;
    if (is_new) RCUDA_WARN("killing process %d, which a worker started and did not end", child);
    ::kill(child, SIGKILL);
    // After kOrphanPause, the children of a killed orphan are children of this process. An orphan
    // that does not end is stuck in a driver, or this process may not kill it.
    const auto next = Clock::now() + (is_new ? kOrphanPause : kStuckPause);
    orphans_at_ = std::min(orphans_at_.value_or(next), next);
  }
  if (!orphans_at_) killed_orphans_.clear();
}

}  // namespace rcuda::server
