// Sessions whose clients are disconnected, which end first when others wait for their room
// (admission/lost_client.h).
#include "common/base/host_name.h"
#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {

std::optional<LostClient> WorkerPool::lost_client(const Worker& worker) const {
  const auto lost_for = lost_seconds(worker);
  if (!lost_for) return std::nullopt;
  const std::string port = port_ == wire::kDefaultPort ? "" : ":" + std::to_string(port_);
  return LostClient{static_cast<uint32_t>(worker.pid), std::chrono::seconds(*lost_for),
                    worker.kill_at.has_value(),
                    "rcuda-smi end " + host_name() + port + " " + std::to_string(worker.pid)};
}

std::vector<Admission::LostSession> WorkerPool::lost() const {
  std::vector<Admission::LostSession> sessions;
  for (const Worker& worker : workers_) {
    const auto client = worker.permit ? lost_client(worker) : std::nullopt;
    if (client) sessions.push_back({*client, worker.identity, worker.permit.get()});
  }
  return sessions;
}

void WorkerPool::end_lost(uint32_t worker_pid) {
  const std::string why =
      "its client was disconnected, and another program waited for its room on " + host_name();
  for (Worker& worker : workers_) {
    const bool is_it = worker.pid == static_cast<pid_t>(worker_pid) && worker.is(State::kBusy);
    if (!is_it || worker.kill_at) continue;
    RCUDA_INFO("the session of worker %u ends: %s", worker_pid, why.c_str());
    stop_session(worker, why);
  }
}

}  // namespace rcuda::server
