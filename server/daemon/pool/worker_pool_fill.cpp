// Fills the pool: starts workers, and ends idle workers that are not wanted.
#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/usable_processors.h"
#include "server/addresses/address_window.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/driver/driver_loader.h"
#include "server/protocol/start_failure.h"
#include "server/sandbox/start_process.h"
#include "server/worker/compute_share.h"
#include "server/worker/worker_process.h"

namespace rcuda::server {
namespace {

// The workers that may start at the same time. More would not be ready sooner, and would delay the
// first: the driver makes one context after the other, and the other steps of a start need
// processors. (On an H100, a context takes 105 ms, and the start of a single worker takes 430 ms.)
// Hanging workers count too, so that their number is bounded if the driver hangs.
size_t most_starting() { return std::clamp(usable_processors(), 4u, 8u); }

CgroupLimits limits_of(const Settings& settings) {
  return {settings.session_memory.get(), static_cast<uint64_t>(settings.session_processes.get()),
          settings.session_cpu_weight.is_default()
              ? 0
              : static_cast<uint64_t>(settings.session_cpu_weight.get())};
}

}  // namespace

size_t WorkerPool::young(Clock::time_point now) const {
  return static_cast<size_t>(
      std::count_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
        return worker.is(State::kBusy) && now - worker.since < PoolDemand::kYoung;
      }));
}

Base WorkerPool::choose_base(const wire::Hello* hello) const {
  // Chooses the base with the fewest starting or idle workers, so that idle workers have different
  // bases. Drivers are known to start in bases with `doublings_` doublings. If the client's other
  // servers use all of these, takes a smaller base.
  for (uint32_t doublings = doublings_;; --doublings) {
    std::optional<Base> best;
    size_t fewest = ~size_t{0};
    for (uint32_t i = 0; i < wire::kBaseCount && fewest > 0; ++i) {
      const Base base{bases_.at(i), doublings};
      if (hello && is_taken(*hello, base.range())) continue;
      const auto users =
          static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(), [&](const Worker& w) {
            return w.is_spare() && w.base.number() == base.number();
          }));
      if (users < fewest) {
        fewest = users;
        best = base;
      }
    }
    if (best) return *best;
    if (doublings == 0) return {bases_.at(0), 0};  // check_hello() refuses such a client
  }
}

bool WorkerPool::suits(const Worker& worker, const Waiting& client) const {
  return worker.devices == device_sets_.key_of(client.hello->devices) &&
         worker.sm_percent == client.sm_percent && !is_taken(*client.hello, worker.base.range());
}

void WorkerPool::refill(const std::vector<Waiting>& waiting, bool drains) {
  const Clock::time_point now = Clock::now();
  demand_.waiting(waiting.size(), now);
  start_priority_.reset();
  for (const Waiting& client : waiting) {
    if (!client.displaces || has_worker_for(client)) continue;
    start_priority_ = std::max(start_priority_.value_or(0), client.priority);
  }
  if (now < retry_at_) return;
  std::vector<Worker*> spare;
  for (Worker& worker : workers_) {
    if (worker.is_spare()) spare.push_back(&worker);
  }
  const auto take = [&](const auto& is_right) {
    const auto found = std::find_if(spare.begin(), spare.end(), is_right);
    if (found == spare.end()) return false;
    spare.erase(found);
    return true;
  };
  // Workers that suit none of the waiting clients count for the pool only.
  for (const Waiting& client : waiting) {
    if (device_sets_.needs_scout()) break;
    if (take([&](const Worker* worker) { return suits(*worker, client); })) continue;
    const DeviceSets::Key devices = device_sets_.key_of(client.hello->devices);
    if (!try_start(client.hello, devices, client.sm_percent)) return;
  }
  const bool scouts = device_sets_.needs_scout() && !waiting.empty();
  const bool one_more = finding_out() && waiting.empty();
  const size_t idle = drains ? 0 : demand_.idle(now);
  const std::vector<DeviceSets::Key> wanted =
      device_sets_.wanted(scouts ? 1 : std::max<size_t>(idle, one_more ? 1 : 0));
  std::vector<DeviceSets::Key> missing;
  for (const DeviceSets::Key& devices : wanted) {
    const auto is_wanted = [&](const Worker* worker) {
      return worker->devices == devices && worker->sm_percent == 0;
    };
    if (!take(is_wanted)) missing.push_back(devices);
  }
  // While clients wait for workers, starts for the pool would only delay those workers.
  const size_t due = scouts || one_more ? wanted.size()
                     : waiting.empty()  ? demand_.due(young(now), now)
                                        : 0;
  size_t there = wanted.size() - missing.size();
  for (const DeviceSets::Key& devices : missing) {
    if (there++ >= due) break;
    if (!try_start(nullptr, devices, 0)) return;
  }
  // The remaining idle workers are not wanted: they exceed the target, were started for clients
  // that have left, or have devices that no session used lately.
  for (Worker* const worker : spare) {
    if (worker->is(State::kIdle)) stop_worker(*worker);
  }
}

void WorkerPool::renew_idle() {
  asks_nccl_ = true;  // the setting may have changed
  for (Worker& worker : workers_) {
    if (worker.is_spare()) stop_worker(worker);
  }
}

bool WorkerPool::try_start(const wire::Hello* hello, const DeviceSets::Key& devices,
                           uint32_t sm_percent) {
  if (starting() + count(State::kHanging) >= most_starting()) return false;
  const Status status = start(choose_base(hello), devices, sm_percent);
  if (!status.ok()) failed(status, is_lasting(status), devices, sm_percent);
  return status.ok();
}

void WorkerPool::stop_worker(Worker& worker, const std::string& why) {
  (void)send_to_worker(worker.control.get(), StopRequest{why}, -1, Clock::now());
  // A worker that does not read the message stops at the end of the stream.
  ::shutdown(worker.control.get(), SHUT_WR);
  if (may_follow(worker.state, State::kStopping)) enter(worker, State::kStopping);
}

Status WorkerPool::start(const Base& base, const DeviceSets::Key& devices, uint32_t sm_percent) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status::from_errno(errno, "making sockets for a worker");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  // A worker could send a descriptor whose close blocks. So this end receives and queues nothing.
  if (::shutdown(ours.get(), SHUT_RD) != 0)
    return Status::from_errno(errno, "closing the worker's direction of its socket");
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Status::from_errno(errno, "making a pipe for the reports of a worker");
  }
  Worker worker;
  worker.reports.reset(pipe[0]);
  UniqueFd reports(pipe[1]), log;
  RCUDA_RETURN_IF_ERROR(worker.log.open(&log));
  std::vector<std::string> own = settings_.registry.environment();
  std::ranges::move(device_sets_.environment(devices), std::back_inserter(own));
  std::ranges::move(share_environment(sm_percent), std::back_inserter(own));
  if (asks_nccl_) {
    own.push_back(std::string(kAskNcclVariable) + "=" + (ever_ready() ? "1" : kCheckNccl));
  }
  RCUDA_ASSIGN_OR_RETURN(worker.pid,
                         start_process({settings_.worker_binary,
                                        {"rcuda-worker", "--worker", std::to_string(base.number())},
                                        worker_environment(own),
                                        {{log.get(), STDOUT_FILENO},
                                         {log.get(), STDERR_FILENO},
                                         {theirs.get(), kWorkerControl},
                                         {reports.get(), kWorkerReports}}}));
  worker.log.set_worker(worker.pid);
  worker.control = std::move(ours);
  worker.base = base;
  worker.devices = devices;
  worker.sm_percent = sm_percent;
  worker.since = Clock::now();
  if (Status status = hold(&worker); !status.ok()) {
    ::kill(worker.pid, SIGKILL);
    ::waitpid(worker.pid, nullptr, 0);
    return status;
  }
  RCUDA_DEBUG("worker %d starts with base %u", worker.pid, base.number());
  workers_.push_back(std::move(worker));
  return {};
}

// Opens the pidfd of a process that has just been started, and puts the process into a cgroup of
// its own.
Status WorkerPool::hold(Worker* worker) {
  // glibc 2.36 declares pidfd_open() without C linkage.
  worker->process.reset(static_cast<int>(::syscall(SYS_pidfd_open, worker->pid, 0)));
  if (!worker->process) return Status::from_errno(errno, "watching a worker (pidfd_open)");
  if (!cgroups_) return {};
  RCUDA_ASSIGN_OR_RETURN(worker->cgroup, cgroups_->make(worker->pid));
  return worker->cgroup->limit(limits_of(settings_));
}

}  // namespace rcuda::server
