// Disconnected sessions, which end when other clients need their places (admission/lost_client.h).
#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {

std::optional<LostClient> WorkerPool::lost_client(const Worker& worker) {
  // A worker that still runs this long after it has reported the end of its session hangs in the
  // driver.
  constexpr uint64_t kExitsNs = 10'000'000'000;
  const auto lost_for = lost_seconds(worker);
  const uint64_t over_at = worker.work ? worker.work->over_at() : 0;
  const bool exits = over_at != 0 && monotonic_ns() - over_at < kExitsNs;
  const bool ends = worker.is(State::kBusy) && (worker.kill_at || exits);
  if (!lost_for && !ends) return std::nullopt;
  return LostClient{
      static_cast<uint32_t>(worker.pid), std::chrono::seconds(lost_for.value_or(0)), ends,
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - worker.attempted_at)};
}

std::vector<Admission::LostSession> WorkerPool::lost() const {
  std::vector<Admission::LostSession> sessions;
  for (const Worker& worker : workers_) {
    const auto client = worker.permit ? lost_client(worker) : std::nullopt;
    if (client) sessions.push_back({*client, worker.identity, worker.permit.get()});
  }
  return sessions;
}

void WorkerPool::end_lost(uint32_t worker_pid, const std::string& by) {
  const std::string why =
      "its client was disconnected, and another program needed its place on " + host_name();
  for (Worker& worker : workers_) {
    const bool is_it = worker.pid == static_cast<pid_t>(worker_pid) && worker.is(State::kBusy);
    if (!is_it || worker.kill_at) continue;
    worker.ended_for = " (for " + by + ")";
    RCUDA_INFO("the session of worker %u ends: %s%s", worker_pid, why.c_str(),
               worker.ended_for.c_str());
    stop_session(worker, why);
  }
}

}  // namespace rcuda::server
