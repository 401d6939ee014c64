// Sessions whose clients are disconnected, which end first when others wait for their room
// (admission/lost_client.h), and the questions of workers about memory that such sessions hold.
#include <algorithm>
#include <utility>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/messages/message_io.h"
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

const WorkerPool::Worker* WorkerPool::holder_of(const MemoryShort& shortage,
                                                const Worker& asker) const {
  const std::vector<uint32_t>& devices = asker.session.devices;
  const bool has_device = std::ranges::find(devices, shortage.row) != devices.end();
  const auto held_by = [&](const Worker& worker) -> uint64_t {
    if (!shortage.by_quota) return has_device ? worker.work->held(shortage.row) : 0;
    const bool may_share = worker.permit && asker.permit;
    return may_share ? worker.permit->shared_bytes(shortage.row, *asker.permit) : 0;
  };
  // One that ends already makes room first.
  const auto rank = [](const Worker& worker) {
    return std::pair(worker.kill_at.has_value(), lost_seconds(worker).value_or(0));
  };
  const Worker* first = nullptr;
  uint64_t held = 0;
  for (const Worker& worker : workers_) {
    const uint64_t bytes = &worker != &asker && lost_seconds(worker) ? held_by(worker) : 0;
    if (bytes == 0) continue;
    held += std::min(bytes, UINT64_MAX - held);
    if (!first || rank(worker) > rank(*first)) first = &worker;
  }
  return held < shortage.bytes ? nullptr : first;
}

void WorkerPool::answer(Worker& worker) {
  MemoryAnswer answer;
  answer.number = worker.question->number;
  if (const Worker* const holder = holder_of(*worker.question, worker)) {
    const LostClient lost = *lost_client(*holder);
    if (worker.waits || lost.ends) {
      worker.has_waited = true;
      if (lost.may_end()) end_lost(lost.worker);
      return;
    }
    answer.held = hint_of(lost, same_user(holder->identity, worker.identity), "such memory");
  } else {
    answer.more = worker.has_waited;
  }
  worker.question.reset();
  worker.has_waited = false;
  (void)send_to_worker(worker.control.get(), answer, -1, Clock::now());  // or it has died
}

}  // namespace rcuda::server
