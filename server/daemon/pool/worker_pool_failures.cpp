// Failed starts of workers: the pool retries after growing pauses, and decides which clients need
// not wait for a retry.
#include <algorithm>
#include <chrono>

#include <signal.h>
#include <sys/wait.h>

#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

constexpr auto kLongestPause = std::chrono::seconds(30);

}  // namespace

// A single crash may have a cause that passes, such as a shortage of memory. Workers that started
// at the same time may have the same cause.
bool WorkerPool::ends_again(const Worker& worker, std::optional<int> status) {
  const bool killed = !status || (WIFSIGNALED(*status) &&
                                  (WTERMSIG(*status) == SIGKILL || WTERMSIG(*status) == SIGTERM));
  if (killed) return false;
  const bool again = crash_ && crash_->devices == worker.devices && worker.since >= crash_->at;
  if (!crash_ || crash_->devices != worker.devices) crash_ = {worker.devices, Clock::now()};
  return again;
}

void WorkerPool::did_not_start(const Worker& worker, const Status& status, bool is_lasting) {
  // The base may have too few addresses for the driver to start.
  doublings_ = std::min(std::max(doublings_, worker.base.doublings + 1), kMostDoublings);
  failed(status, is_lasting, worker.devices, worker.sm_percent);
}

void WorkerPool::failed(const Status& status, bool is_lasting, const DeviceSets::Key& devices,
                        uint32_t sm_percent) {
  last_failure_ = status;
  lasting_.reset();
  if (is_lasting) lasting_ = {devices, sm_percent};
  ++failures_;
  ++totals_.worker_failures;
  const auto pause = std::min<Clock::duration>(
      kLongestPause, std::chrono::milliseconds(100) * (1 << std::min(failures_, 9)));
  retry_at_ = Clock::now() + pause;
  if (failures_ == 1) RCUDA_ERROR("no worker can start: %s", status.context().c_str());
}

Status WorkerPool::lasting_failure(const Waiting& client) const {
  // After the pause, the next refill() tries again for the client.
  if (!lasting_ || Clock::now() >= retry_at_) return {};
  const bool is_scout = !lasting_->devices;  // its failure concerns every client
  if (!is_scout && (*lasting_->devices != device_sets_.key_of(client.hello->devices) ||
                    lasting_->sm_percent != client.sm_percent)) {
    return {};
  }
  const bool one_comes = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.is(State::kStarting) && (!worker.devices || suits(worker, client));
  });
  if (one_comes) return {};
  return Status(last_failure_).with_context("the server can start no worker");
}

}  // namespace rcuda::server
