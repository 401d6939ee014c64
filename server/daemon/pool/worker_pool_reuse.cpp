// Workers that serve one session after the other: what a worker says when its session is over, and
// whether the pool wants it back.
#include <algorithm>
#include <utility>

#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {

// A worker of root becomes its session's user for good, and a session that has taken it over could
// keep it beyond its end. It would keep what the session's limits then count no more, too. A worker
// of another user can do nothing that its sessions' code could not do to the server itself.
bool WorkerPool::reuses() const { return settings_.reuse.get() && ::geteuid() != 0; }

// Kept workers that wait for a session hold memory of the GPU, so they are not more than a large
// pool, unless clients wait for them.
bool WorkerPool::wants_back(const Worker& worker) const {
  const auto kept = static_cast<size_t>(std::count_if(
      workers_.begin(), workers_.end(), [](const Worker& other) { return other.is_kept(); }));
  return reuses() && worker.sm_percent == 0 && !worker.kill_at &&
         kept < std::max(static_cast<size_t>(settings_.pool_most.get()), waiting_);
}

WorkerPool::Clock::time_point WorkerPool::clean_by(const Worker& worker) const {
  const uint64_t starts = std::max<uint64_t>(totals_.worker_starts, 1);
  return worker.since + std::chrono::microseconds(totals_.worker_start_us / starts);
}

bool WorkerPool::is_clean_soon(const Worker& worker) const {
  return worker.is(State::kCleaning) && Clock::now() < clean_by(worker);
}

void WorkerPool::read_session(Worker& worker, ToDaemon message) {
  worker.reads_reports = false;  // it says one thing; its pidfd reports its end
  if (worker.is(State::kCleaning)) {
    if (std::holds_alternative<WorkerClean>(message)) enter(worker, State::kIdle);
    return;
  }
  auto* const totals = std::get_if<SessionTotals>(&message);
  if (!totals) return;
  worker.totals = std::move(*totals);
  if (!worker.totals->awaits_answer) return;
  const bool wanted = wants_back(worker);
  const ToWorker answer = wanted ? ToWorker(CleanRequest()) : ToWorker(StopRequest());
  const Status sent = send_to_worker(worker.control.get(), answer, -1, Clock::now());
  if (!wanted || !sent.ok()) return;  // it is busy until it has ended
  enter(worker, State::kCleaning, worker.totals->outcome);
  worker.returned = worker.since;
  worker.kill_at = Clock::now() + 2 * settings_.stop_timeout.get();
}

}  // namespace rcuda::server
