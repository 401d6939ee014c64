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

void WorkerPool::read_session(Worker& worker, const WorkerMessage& message) {
  worker.heard = true;  // it says one thing; its pidfd reports its end
  if (worker.is(State::kCleaning)) {
    if (message.type == WorkerMessageType::kClean) rest(worker);
    return;
  }
  if (message.type != WorkerMessageType::kEnded) return;
  Result<SessionTotals> totals = wire::decode<SessionTotals>(message.body);
  if (!totals.ok()) return;
  worker.totals = std::move(totals).value();
  if (message.index != 1) return;
  const bool wanted = wants_back(worker);
  WorkerMessage answer;
  answer.type = wanted ? WorkerMessageType::kClean : WorkerMessageType::kStop;
  const Status sent = send_worker_message(worker.control.get(), answer, Clock::now());
  if (!wanted || !sent.ok()) return;  // it is busy until it has ended
  record_end(worker, worker.totals->outcome);
  worker.state = State::kCleaning;
  worker.heard = false;
  worker.since = Clock::now();
  worker.returned = worker.since;
  worker.kill_at = Clock::now() + 2 * settings_.stop_timeout.get();
}

// The worker is clean. Only now is nothing of its session left, and the permit ends.
void WorkerPool::rest(Worker& worker) {
  RCUDA_DEBUG("worker %d is clean again after %.0f ms", worker.pid,
              std::chrono::duration<double, std::milli>(Clock::now() - worker.since).count());
  worker.state = State::kIdle;
  worker.since = Clock::now();
  worker.kill_at.reset();
  worker.permit.reset();
  worker.work.reset();
  worker.attach_tokens.clear();
  worker.identity = {};
  worker.session = {};
}

}  // namespace rcuda::server
