// How the pool fills: which workers are started, and which idle ones are ended.
#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/addresses/address_window.h"
#include "server/daemon/pool/spawn_worker.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/driver/driver_loader.h"
#include "server/protocol/start_failure.h"
#include "server/worker/compute_share.h"

namespace rcuda::server {
namespace {

// More workers that start at once than these are not ready sooner, and delay the first of them: the
// driver makes one context after the other (105 ms each on an H100, of the 430 that a worker takes
// alone), and the rest takes processors. Workers that are being cleaned need the driver as well.
// Workers that hang count too: if the driver hangs, they must not become more and more.
size_t most_starting() { return std::clamp(std::thread::hardware_concurrency(), 4u, 8u); }

CgroupLimits limits_of(const Settings& settings) {
  return {settings.session_memory.get(), static_cast<uint64_t>(settings.session_processes.get()),
          settings.session_cpu_weight.is_default()
              ? 0
              : static_cast<uint64_t>(settings.session_cpu_weight.get())};
}

}  // namespace

bool WorkerPool::may_start() const {
  const auto others = std::count_if(workers_.begin(), workers_.end(), [this](const Worker& w) {
    return w.is(State::kHanging) || is_clean_soon(w);
  });
  return starting() + static_cast<size_t>(others) < most_starting();
}

// Programs of one owner that come in crowds are short, and a worker that is cleaned serves the next
// one sooner than one that starts. Of 32 programs with a kernel, with two idle workers, all were
// done in 9.8 and 12.5 s with one worker starting at a time, in 14.8 and 18.3 s with eight, and
// natively in 9.2 and 12.5 s; of eight programs in 2.5 and 3.2, 1.9 and 2.2, and 2.0 and 2.6 s
// (H200). So a client of a crowd, which is more than can start at once, waits while one of its
// owner's workers starts or is being cleaned, if sessions of that owner have ended lately. How many
// come at once, and whether they are short, shows only after a moment.
bool WorkerPool::had_better_wait(const Waiting& client) const {
  constexpr auto kLately = std::chrono::seconds(5);
  const Clock::time_point now = Clock::now();
  bool has_worker = false, ends_soon = false, comes = false;
  for (const Worker& worker : workers_) {
    if (!suits(worker, client)) continue;
    const bool cleans = is_clean_soon(worker);
    comes = comes || cleans || worker.is(State::kStarting);
    if (worker.owner.empty()) continue;
    has_worker = true;
    ends_soon = ends_soon || cleans || (worker.returned && now - *worker.returned < kLately);
  }
  if (!reuses() || !has_worker || !comes) return false;
  return now < counted_at() || (ends_soon && waiting_ > most_starting());
}

Base WorkerPool::choose_base(const wire::Hello* hello) const {
  // Chooses the base with the fewest starting or idle workers, so that idle workers have different
  // ones. A smaller base if the client leaves none of the size that drivers are known to start in.
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
         worker.sm_percent == client.sm_percent && !is_taken(*client.hello, worker.base.range()) &&
         (worker.owner.empty() ||
          (client.identity && worker.owner == owner_of(*client.identity, *client.hello)));
}

void WorkerPool::refill(const std::vector<Waiting>& waiting, bool drains) {
  const Clock::time_point now = Clock::now();
  if (waiting_ == 0) waiting_since_ = now;
  waiting_ = waiting.size();
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
    const auto is_right = [&](const Worker* worker) {
      return suits(*worker, client) && (!worker->is(State::kCleaning) || is_clean_soon(*worker));
    };
    if (take(is_right)) continue;
    if (!may_start()) return;
    if (had_better_wait(client)) continue;
    const DeviceSets::Key devices = device_sets_.key_of(client.hello->devices);
    const Status status = start(choose_base(client.hello), devices, client.sm_percent);
    if (!status.ok()) return failed(status, is_lasting(status), devices, client.sm_percent);
  }
  // Workers that serve again are kept after many sessions at once anyway.
  const auto usual = drains ? 0 : static_cast<size_t>(settings_.pool.get());
  const size_t wanted = reuses() || drains ? usual : demand_.idle(now);
  const bool scouts = device_sets_.needs_scout();
  const bool one_more = finding_out() && waiting.empty();
  const size_t idle = scouts && !waiting.empty() ? 1 : std::max<size_t>(wanted, one_more ? 1 : 0);
  // A start would hold up the cleaning of workers that clients wait for.
  const bool later = reuses() && !scouts && (count(State::kCleaning) != 0 || !waiting.empty());
  // The usual ones must suit everybody; those that many sessions at once will need may be kept
  // ones.
  size_t for_everybody = usual;
  for (const DeviceSets::Key& devices : device_sets_.wanted(idle)) {
    const bool any = for_everybody == 0;
    if (!any) --for_everybody;
    const auto is_wanted = [&](const Worker* worker) {
      return worker->devices == devices && worker->sm_percent == 0 &&
             (any || worker->owner.empty());
    };
    if (take(is_wanted)) continue;
    if (later || !may_start()) return;
    if (Status status = start(choose_base(nullptr), devices, 0); !status.ok()) {
      return failed(status, is_lasting(status), devices, 0);
    }
  }
  // The other idle workers were started for clients that have left, or are for devices that other
  // sessions have not asked for lately, or have served an owner who has not come again.
  for (; !spare.empty(); spare.pop_back()) {
    Worker& worker = *spare.back();
    const bool is_young = worker.is_kept() && now - worker.since < settings_.pool_time.get();
    if (worker.is(State::kIdle) && !is_young) stop_worker(worker);
  }
}

void WorkerPool::stop_worker(Worker& worker) {
  (void)send_to_worker(worker.control.get(), StopRequest(), -1, Clock::now());
  // A worker that does not read the message stops at the end of the stream.
  ::shutdown(worker.control.get(), SHUT_WR);
  if (may_follow(worker.state, State::kStopping)) enter(worker, State::kStopping);
}

Status WorkerPool::start(const Base& base, const DeviceSets::Key& devices, uint32_t sm_percent) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status::from_errno(errno, "socketpair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  // A worker could send a descriptor whose close blocks. So this end receives and queues nothing.
  if (::shutdown(ours.get(), SHUT_RD) != 0) return Status::from_errno(errno, "shutdown");
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Status::from_errno(errno, "a pipe for the reports of a worker");
  }
  Worker worker;
  worker.reports.reset(pipe[0]);
  UniqueFd reports(pipe[1]), log;
  RCUDA_RETURN_IF_ERROR(worker.log.open(&log));
  // spawn_worker() copies them to low numbers.
  for (UniqueFd* end : {&theirs, &reports, &log}) {
    if (end->get() > kWorkerReports) continue;
    end->reset(::fcntl(end->get(), F_DUPFD_CLOEXEC, kWorkerReports + 1));
    if (!*end) return Status::from_errno(errno, "a descriptor for a worker");
  }
  std::vector<std::string> own = settings_.registry.environment();
  std::ranges::move(device_sets_.environment(devices), std::back_inserter(own));
  std::ranges::move(share_environment(sm_percent), std::back_inserter(own));
  const Result<pid_t> pid =
      spawn_worker(settings_.worker_binary, {theirs.get(), reports.get(), log.get()}, base.number(),
                   worker_environment(own));
  if (!pid.ok()) return pid.status();
  worker.pid = *pid;
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

// Opens a process that has just been started, and puts it into a cgroup of its own.
Status WorkerPool::hold(Worker* worker) {
  // glibc 2.36 declares pidfd_open() without C linkage.
  worker->process.reset(static_cast<int>(::syscall(SYS_pidfd_open, worker->pid, 0)));
  if (!worker->process) return Status::from_errno(errno, "pidfd_open");
  if (!cgroups_) return {};
  Result<std::unique_ptr<WorkerCgroup>> cgroup = cgroups_->make(worker->pid);
  if (!cgroup.ok()) return cgroup.status();
  worker->cgroup = std::move(cgroup).value();
  return worker->cgroup->limit(limits_of(settings_));
}

}  // namespace rcuda::server
