// The rules that the daemon enforces in case a worker does not: limits of a session's time, and
// that no process of a session outlives its worker.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

constexpr auto kOrphanPause = std::chrono::milliseconds(10);
constexpr auto kStuckPause = std::chrono::milliseconds(1000);

}  // namespace

// The worker ends its session itself, and has some time for that (EndWatch). Its clock starts later
// than the daemon's, because the client connects first.
WorkerPool::Clock::time_point WorkerPool::enforce_time(Worker& worker, Clock::time_point now) {
  if (!worker.is(State::kBusy) || !worker.permit || worker.kill_at) return Clock::time_point::max();
  const SessionLimits& limits = worker.permit->limits();
  const auto grace = 2 * settings_.stop_timeout.get() + settings_.handshake_timeout.get();
  const auto overdue = [&](const char* limit) {
    worker.ended_by =
        std::string("ended by the server, because the worker did not: limit ") + limit;
    RCUDA_WARN("worker %d has not ended a session that exceeds its limit %s", worker.pid, limit);
    worker.kill_at = now;
    return Clock::time_point::max();
  };
  Clock::time_point next = Clock::time_point::max();
  if (limits.session_time.count() != 0) {
    const auto end = worker.since + limits.session_time + grace;
    if (now >= end) return overdue("session time");
    next = end;
  }
  if (limits.idle_time.count() == 0 || !worker.work) return next;
  // The worker reports this time. A worker that lies gets as much time as a client that is never
  // idle.
  const uint64_t says = worker.work->idle_end();
  const auto most = static_cast<uint64_t>((now + limits.idle_time).time_since_epoch().count());
  if (says == 0 || says == WorkPage::kBusy || says > most) {
    return std::min(next, now + limits.idle_time);
  }
  const auto end = Clock::time_point(std::chrono::nanoseconds(says)) + grace;
  if (now >= end) return overdue("idle time");
  return std::min(next, end);
}

void WorkerPool::adopt_orphans(std::function<bool(pid_t)> is_other) {
  is_other_ = std::move(is_other);
  // As process 1 of a container it also gets processes that no worker has left behind.
  if (cgroups_ || ::getpid() == 1) return;
  std::ifstream children("/proc/thread-self/children");
  for (pid_t child = 0; children >> child;) not_of_workers_.insert(child);
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
    if (is_worker || not_of_workers_.contains(child) || is_other_(child) ||
        ::waitpid(child, nullptr, WNOHANG) != 0) {
      continue;
    }
    const bool is_new = killed_orphans_.insert(child).second;
    if (is_new) RCUDA_WARN("process %d, which a worker has left behind, is killed", child);
    ::kill(child, SIGKILL);
    // By then the children of a new one are children of this process. One that is known does not
    // end: it is stuck in a driver, or this process may not kill it.
    const auto next = Clock::now() + (is_new ? kOrphanPause : kStuckPause);
    orphans_at_ = std::min(orphans_at_.value_or(next), next);
  }
  if (!orphans_at_) killed_orphans_.clear();
}

}  // namespace rcuda::server
