// Parking (docs/parking.md): releases the GPU memory of sessions while they do nothing.
#include <algorithm>
#include <cassert>
#include <fstream>
#include <string>
#include <utility>

#include <signal.h>
#include <sys/resource.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

// While a session is at rest: how often the daemon checks whether the other sessions of its group
// still exist and have come to rest.
constexpr auto kRestPause = std::chrono::milliseconds(200);
// If a session cannot be parked because of work in progress, the next try comes after park_after,
// but not before this pause has passed.
constexpr std::chrono::nanoseconds kLeastBusyPause = std::chrono::milliseconds(100);
// A session that cannot be parked is not chosen to make room for other sessions until this time has
// passed.
constexpr auto kCannotPause = std::chrono::seconds(10);
// One tenth of the host's available memory stays free.
constexpr uint64_t kStaysFree = 10;

uint64_t available_host_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    uint64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return (kib << 10) / kStaysFree * (kStaysFree - 1);
    file.ignore(256, '\n');
  }
  return UINT64_MAX;
}

std::string by_text(const std::optional<Identity>& by, pid_t room_for = 0) {
  return by             ? "as " + by->user + " requested"
         : room_for > 0 ? "because another session needs its GPU memory (worker " +
                              std::to_string(room_for) + ")"
         : room_for != 0 ? "because a new session needs its GPU memory"
                         : "because it was idle (park_after)";
}

uint64_t sum_of(const std::map<uint32_t, uint64_t>& bytes) {
  uint64_t sum = 0;
  for (const auto& [device, of_device] : bytes) sum += of_device;
  return sum;
}

}  // namespace

// The host's memory that the worker of a parked session has: the copy of the GPU memory, and the
// memory that the worker keeps for its copies (Park::kept). A worker that moves the memory itself
// puts the copy into the kept memory. The driver puts the copy into other memory.
uint64_t WorkerPool::host_bytes(const Park& park) {
  const uint64_t moved = sum_of(park.bytes);
  return park.way == ParkWay::kWorker ? std::max(park.kept, moved) : park.kept + moved;
}

WorkerPool::Clock::time_point WorkerPool::move_end(const Park& park) {
  return park.since + longest_move(sum_of(park.bytes));
}

void WorkerPool::enter(Worker& worker, ParkState state) {
  assert(may_follow(worker.park.state, state));
  RCUDA_DEBUG("the session of worker %d: %s -> %s", worker.pid, to_string(worker.park.state),
              to_string(state));
  worker.park.state = state;
  worker.park.since = Clock::now();
  worker.park.has_answered = worker.park.is_measured = false;
  // Without oversubscription (reads()), the daemon reads from the worker only in states in which it
  // expects a message. So the worker cannot keep the daemon busy.
  worker.reads_reports = worker.park.owes_answer || state == ParkState::kResting ||
                         state == ParkState::kSuspending || state == ParkState::kParked ||
                         worker.park.worker_moves();
  if (state == ParkState::kWaiting) worker.park.is_hopeless = false;
  if (state != ParkState::kActive) return;
  worker.park.group = 0;
  worker.park.moves.clear();
  worker.park.unanswered_moves = 0;
  for (auto& [call, socket] : std::exchange(worker.callers, {})) {
    pass_on(worker, std::move(call), &socket);
  }
}

void WorkerPool::send_step(Worker& worker, const ParkStep& step) {
  const Status sent = send_to_worker(worker.control.get(), step, -1, Clock::now());
  if (sent.ok()) return;
  RCUDA_WARN("worker %d does not read the server's messages and is killed: %s", worker.pid,
             sent.message().c_str());
  ::kill(worker.pid, SIGKILL);
}

Status WorkerPool::park_session(uint32_t worker_pid, const MayUse& may_park, const Identity& by) {
  RCUDA_ASSIGN_OR_RETURN(Worker* const worker, find_session(worker_pid, may_park));
  return begin_park(*worker, by);
}

Status WorkerPool::wake_session(uint32_t worker_pid, const MayUse& may_wake, const Identity& by) {
  RCUDA_ASSIGN_OR_RETURN(Worker* const worker, find_session(worker_pid, may_wake));
  if (!is_away(worker->park.state)) {
    return {Code::kUnavailable, "the session of worker " + std::to_string(worker_pid) +
                                    " is not parked: rcuda-smi shows its state"};
  }
  if (worker->park.state != ParkState::kParked) return {};
  for (Worker* const member : group_of(*worker)) member->park.by = by;
  send_step(*worker, ParkStep::What::kWake);
  return {};
}

void WorkerPool::read_park(Worker& worker, const ParkAnswer& answer) {
  using What = ParkAnswer::What;
  Park& park = worker.park;
  const ParkState state = park.state;
  if (answer.what >= What::kRoomWanted) return read_room(worker, answer);
  if (park.owes_answer && answer.what != What::kWakeWanted) {
    park.owes_answer = false;
    worker.reads_reports = false;
  } else if ((state == ParkState::kResting && answer.what == What::kAtRest) ||
             (state == ParkState::kSuspending && answer.what == What::kSuspended)) {
    if (state == ParkState::kResting) note_way(worker, answer);
    park.has_answered = true;
    worker.reads_reports = false;
    advance_rest(worker);
  } else if ((state == ParkState::kResting || state == ParkState::kSuspending) &&
             (answer.what == What::kBusy || answer.what == What::kCannot)) {
    if (answer.what == What::kBusy) {
      park.try_at = Clock::now() + std::max(settings_.park_after.get(), kLeastBusyPause);
    } else {
      park.cannot_until = Clock::now() + kCannotPause;
    }
    park.has_answered = true;
    refuse_group(worker, answer.why);
  } else if (state == ParkState::kParked && answer.what == What::kPlaced) {
    if (park.unanswered_moves > 0) --park.unanswered_moves;
  } else if (state == ParkState::kParked && answer.what == What::kWakeWanted &&
             park.unanswered_moves == 0) {
    enter(worker, ParkState::kWaiting);
    park.room_asked = Clock::now();
    for (Worker* const member : group_of(worker)) {
      if (member->park.state == ParkState::kParked) send_step(*member, ParkStep::What::kWake);
    }
  } else if (park.worker_moves()) {
    worker_moved(worker, answer);
  }
}

// Chooses the way of parking. The worker has reported the bytes that it can move, by device. The
// daemon accepts at most the size of the device. Sessions that are parked together are always
// parked by the driver.
void WorkerPool::note_way(Worker& worker, const ParkAnswer& at_rest) {
  Park& park = worker.park;
  const std::vector<uint32_t>& devices = worker.session.devices;
  const bool is_alone = group_of(worker).size() == 1;
  const bool can_move = settings_.movable_memory.get() && at_rest.bytes.size() == devices.size();
  park.way = is_alone && can_move ? ParkWay::kWorker : ParkWay::kDriver;
  park.bytes.clear();
  if (park.way == ParkWay::kDriver) return;
  for (size_t i = 0; i < devices.size(); ++i) {
    park.bytes[devices[i]] = std::min(at_rest.bytes[i], memory_of(devices[i]));
  }
}

// The size of a GPU; 0 if the server does not offer it.
uint64_t WorkerPool::memory_of(uint32_t ordinal) const {
  const auto found =
      std::ranges::find(offer_.devices, ordinal, &wire::ServerStatus::Device::ordinal);
  return found == offer_.devices.end() ? 0 : found->total_bytes;
}

void WorkerPool::refuse_park(Worker& worker, const std::string& why) {
  Park& park = worker.park;
  park.refused = why;
  const bool had_work = park.state == ParkState::kResting;
  // The daemon may try to park a session often, because of park_after or to make room for other
  // sessions. So it does not log the same reason twice in a row.
  const bool is_news =
      park.by || (!(park.room_for != 0 && had_work) && std::exchange(park.logged, why) != why);
  if (std::exchange(park.room_for, 0) != 0) {
    park.busy_until = Clock::now() + kLeastBusyPause;
    if (!had_work) park.cannot_until = Clock::now() + kCannotPause;
    if (park.is_preempted) park.preempt_after = Clock::now() + settings_.preempt_wait.get();
  }
  if (is_news) {
    RCUDA_INFO("the session of worker %d (%s) is not parked: %s", worker.pid,
               worker.identity.user.c_str(), why.c_str());
  }
  enter(worker, ParkState::kActive);
}

// Returns the time of the next try to park the session because of park_after. There is one try for
// each idle time, and a further try at Park::try_at, if it is set.
std::optional<WorkerPool::Clock::time_point> WorkerPool::park_due(const Worker& worker) const {
  const auto idle = settings_.park_after.get();
  const Park& park = worker.park;
  if (idle.count() == 0 || park.state != ParkState::kActive || !worker.work) return std::nullopt;
  const uint64_t used_at = worker.work->used_at();
  if (park.tried_at == used_at) return park.try_at;
  // The worker writes this time, so it may be anything.
  const auto used = Clock::time_point(std::chrono::nanoseconds(used_at));
  return std::max({worker.since, park.awake_at, std::min(used, Clock::now())}) + idle;
}

void WorkerPool::park_idle(Worker& worker) {
  const auto due = park_due(worker);
  const Clock::time_point now = Clock::now();
  if (!due || now < *due) return;
  worker.park.tried_at = worker.work->used_at();
  worker.park.try_at.reset();
  // All sessions that would be parked with this session must be idle too.
  for (const Worker* const member : connected_with(worker)) {
    const auto due_too = park_due(*member);
    if (member == &worker || (due_too && now >= *due_too)) continue;
    worker.park.try_at = due_too.value_or(now + settings_.park_after.get());
    return;
  }
  const Status begun = begin_park(worker, std::nullopt);
  if (begun.ok()) return;
  RCUDA_DEBUG("%s", begun.message().c_str());
  worker.park.try_at = now + settings_.park_after.get();
}

// Measures the bytes that the driver would move on each GPU. Without a value of NVML, uses the
// worker's own count. This count may be wrong, so it is limited to the size of the GPU. Returns
// false if NVML has not answered yet.
bool WorkerPool::find_bytes(Worker& worker, GpuMonitor& monitor) const {
  std::shared_ptr<const GpuSample> sample;
  if (!find_sample(monitor, worker.park.since, &sample) &&
      Clock::now() < worker.park.since + kLongestMeasure) {
    return false;
  }
  for (const uint32_t ordinal : worker.session.devices) {
    uint64_t bytes = std::min(worker.work ? worker.work->held(ordinal) : 0, memory_of(ordinal));
    if (const GpuSample::Gpu* const gpu = gpu_of(sample.get(), ordinal)) {
      const auto told = gpu->memory_of.find(static_cast<uint32_t>(worker.pid));
      const bool is_told =
          told != gpu->memory_of.end() && told->second != GpuSample::Gpu::kNotAvailable;
      if (is_told) bytes = told->second;
    }
    worker.park.bytes[ordinal] = bytes;
  }
  return true;
}

// Checks that the GPU memory of these sessions fits into the host's memory.
Status WorkerPool::check_host_memory(const std::vector<Worker*>& members) const {
  uint64_t needs = 0, moved = 0, others = 0;  // `others`: for parks in progress
  for (const Worker* const member : members) {
    needs += more_host_bytes(member->park);
    moved += sum_of(member->park.bytes);
  }
  for (const Worker& other : workers_) {
    if (other.park.state == ParkState::kParking) others += more_host_bytes(other.park);
  }
  const uint64_t there = available_host_memory();
  if (needs + others <= there) return {};
  return {Code::kOutOfMemory, "its " + bytes_text(moved) +
                                  " of GPU memory do not fit into the host's memory (" +
                                  bytes_text(there) + " are available)"};
}

// Finds a sample that is newer than `asked`: an older sample may lack memory that a helper has just
// moved.
bool WorkerPool::find_sample(GpuMonitor& monitor, Clock::time_point asked,
                             std::shared_ptr<const GpuSample>* sample) const {
  std::vector<GpuName> names;
  for (const WorkerReady::Identity& identity : offer_.identities) {
    names.push_back({identity.pci_bus_id, identity.uuid});
  }
  return monitor.find(offer_.driver_path, names, asked + GpuMonitor::kFresh, sample);
}

const GpuSample::Gpu* WorkerPool::gpu_of(const GpuSample* sample, uint32_t ordinal) const {
  const std::vector<uint32_t> ordinals = offer_.ordinals();
  const auto found = std::find(ordinals.begin(), ordinals.end(), ordinal);
  if (!sample || found == ordinals.end()) return nullptr;
  const GpuSample::Gpu& gpu = sample->gpus[static_cast<size_t>(found - ordinals.begin())];
  return gpu.known ? &gpu : nullptr;
}

// Raises the limit of the worker's memory by `bytes`, because GPU memory is copied into the
// worker's own memory. A negative number lowers the limit again.
Status WorkerPool::allow_host_memory(Worker& worker, int64_t bytes) const {
  if (worker.cgroup && cgroups_->has("memory")) return worker.cgroup->add_memory(bytes);
  if (settings_.session_memory.get() == 0) return {};
  rlimit limit{};
  if (::prlimit(worker.pid, RLIMIT_DATA, nullptr, &limit) != 0) {
    return Status::from_errno(errno, "reading the memory limit (RLIMIT_DATA) of the worker");
  }
  if (limit.rlim_max == RLIM_INFINITY) return {};
  limit.rlim_max += static_cast<rlim_t>(bytes);
  limit.rlim_cur = limit.rlim_max;
  if (::prlimit(worker.pid, RLIMIT_DATA, &limit, nullptr) == 0) return {};
  return Status::from_errno(errno,
                            "changing the memory limit (RLIMIT_DATA) of the worker for its parked "
                            "GPU memory (run the server in a delegated cgroup, or without "
                            "RCUDA_SERVER_SESSION_MEMORY)");
}

// The page-locked memory that the worker may keep when it is awake again.
uint64_t WorkerPool::may_keep(const Worker& worker) const {
  uint64_t others = 0;
  for (const Worker& other : workers_) {
    if (&other == &worker || !other.is(State::kBusy)) continue;
    const bool wakes = other.park.worker_moves() && other.park.state == ParkState::kWaking;
    others += wakes ? std::max(other.park.kept, other.park.keeps) : other.park.kept;
  }
  const uint64_t all = settings_.park_memory.get();
  return std::min(sum_of(worker.park.bytes), all - std::min(all, others));
}

Status WorkerPool::start_moving(const std::vector<Worker*>& members, ParkTask task) {
  Worker& first = *members.front();
  if (first.park.way == ParkWay::kWorker) {
    first.park.keeps = task == ParkTask::kWake ? may_keep(first) : first.park.kept;
    send_step(first, ParkStep::What::kMove, first.park.keeps);
    return {};
  }
  std::vector<pid_t> pids;
  uint64_t bytes = 0;
  for (const Worker* const member : members) {
    pids.push_back(member->pid);
    bytes += sum_of(member->park.bytes);
  }
  RCUDA_ASSIGN_OR_RETURN(ParkHelper helper,
                         ParkHelper::start(settings_, task, std::move(pids), bytes, moves_of(first),
                                           device_sets_.environment(first.devices)));
  helpers_.push_back(std::move(helper));
  return {};
}

// Sessions that share a GPU wake one after the other. Each looks for room only after the previous
// session has its memory, because the driver cannot repeat a restore that finds no room. The
// highest priority comes first, and of these the session that has waited longest. A session that
// finds no room does not hold back the others. Sessions whose workers wait for room have a place in
// the same queue.
void WorkerPool::wake_waiting(GpuMonitor& monitor, Clock::time_point now) {
  std::vector<std::vector<Worker*>> waiting;  // each element: sessions that are parked together
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.kill_at) continue;
    if (worker.park.wish) waiting.push_back({&worker});
    if (worker.park.state != ParkState::kWaiting) continue;
    std::vector<Worker*> members = group_of(worker);
    const bool all_wait = std::ranges::all_of(
        members, [](const Worker* member) { return member->park.state == ParkState::kWaiting; });
    if (all_wait && members.front() == &worker) waiting.push_back(std::move(members));
  }
  std::ranges::stable_sort(waiting, {}, [](const auto& members) {
    const Park& park = members.front()->park;
    return std::pair(-int64_t{priority_of(*members.front())},
                     park.wish ? park.wish->since : park.since);
  });
  std::set<uint32_t> claimed;  // devices of earlier sessions that can get room
  std::set<uint32_t> awaited;  // devices of all earlier sessions in the queue
  for (const std::vector<Worker*>& members : waiting) {
    Park& first = members.front()->park;
    std::set<uint32_t> devices;
    if (first.wish) devices.insert(first.wish->device);
    for (const Worker* const member : members) {
      if (first.wish) break;
      devices.insert(member->session.devices.begin(), member->session.devices.end());
    }
    const std::set<uint32_t> taken = moving_devices();
    const auto any_in = [&devices](const std::set<uint32_t>& others) {
      return std::ranges::any_of(devices, [&](uint32_t device) { return others.contains(device); });
    };
    if (any_in(taken)) {
      if (first.keeps_room) first.room_asked = now;
    } else if (first.wish) {
      serve_wish(*members.front(), now, !any_in(claimed));
    } else if (now < first.room_asked) {
      look_later(members, first.room_asked);
    } else {
      wake_if_room(members, monitor, now, !any_in(claimed), !any_in(awaited));
    }
    awaited.insert(devices.begin(), devices.end());
    if (!first.is_hopeless) claimed.merge(devices);
  }
  if (!start_wish_) return;
  const uint32_t device = start_wish_->device;
  serve_start(now, !claimed.contains(device) && !moving_devices().contains(device));
}

void WorkerPool::wake_if_room(const std::vector<Worker*>& members, GpuMonitor& monitor,
                              Clock::time_point now, bool may_displace, bool is_first) {
  Park& first = members.front()->park;
  if (!first.keeps_room) {
    for (Worker* const member : members) member->park.keeps_room = true;
    keep_room();
    first.room_asked = Clock::now();
  }
  // A worker that moves its memory itself can try again. So its first try skips the query of NVML,
  // which takes 40 ms on an H200, longer than the try. Exception: on an oversubscribed GPU, such a
  // try would take room from other sessions.
  const bool is_retry = first.waits_since == first.since;
  const bool tries = is_first && members.size() == 1 && first.way == ParkWay::kWorker &&
                     !is_retry && !is_oversubscribed(*members.front());
  if (!tries && !has_room(members, monitor, now, may_displace)) return;
  if (const Status started = start_moving(members, ParkTask::kWake); !started.ok()) {
    RCUDA_ERROR("cannot start a process to wake the session of worker %d: %s", members.front()->pid,
                started.message().c_str());
    return look_later(members, now + kRoomPause);
  }
  for (Worker* const member : members) {
    member->park.waits_since = member->park.since;
    enter(*member, ParkState::kWaking);
    member->park.keeps_room = false;  // the state kWaking keeps the room from now on
  }
}

void WorkerPool::end_helpers() {
  for (auto helper = helpers_.begin(); helper != helpers_.end();) {
    const auto outcome = helper->poll();
    if (!outcome) {
      helper = helper->is_gone() ? helpers_.erase(helper) : std::next(helper);
      continue;
    }
    for (Worker& worker : workers_) {  // some workers may have ended meanwhile
      if (worker.is(State::kBusy) && helper->moves(worker.pid)) helper_ended(worker, *outcome);
    }
    ask_for_room_again();
    helper = helper->is_gone() ? helpers_.erase(helper) : std::next(helper);
  }
}

// GPU memory has moved, so samples of NVML from before do not count.
void WorkerPool::ask_for_room_again() {
  for (Worker& worker : workers_) worker.park.room_asked = Clock::now();
}

void WorkerPool::helper_ended(Worker& worker, const ParkHelper::Outcome& outcome) {
  const bool parks = worker.park.state == ParkState::kParking;
  if (outcome.how == ParkExit::kBroken) return lose(worker, outcome.why);
  if (parks && outcome.how != ParkExit::kDone) {
    send_step(worker, ParkStep::What::kStay);
    return not_parked(worker, outcome.why);
  }
  if (outcome.how == ParkExit::kRefused) move_back(worker, outcome.why);
  send_step(worker, parks ? ParkStep::What::kParked : ParkStep::What::kAwake);
  parks ? is_parked(worker) : is_awake(worker);
}

// If a wake finds no room, the memory is still in the host's memory, and the session waits again.
void WorkerPool::worker_moved(Worker& worker, const ParkAnswer& answer) {
  const bool parks = worker.park.state == ParkState::kParking;
  const bool has_moved = answer.what == ParkAnswer::What::kMoved;
  if (worker.park.is_broken || (!has_moved && answer.what != ParkAnswer::What::kNotMoved)) return;
  ask_for_room_again();
  if (has_moved) {
    parks ? is_parked(worker) : is_awake(worker);
  } else if (parks) {
    not_parked(worker, answer.why);
  } else if (!answer.why.empty()) {  // a failure, not only a lack of room
    lose(worker, answer.why);
  } else {
    const Clock::time_point since = worker.park.waits_since;
    enter(worker, ParkState::kWaiting);
    worker.park.since = since;  // it keeps its place in the queue
    look_later({&worker}, Clock::now() + kRoomPause);
  }
}

void WorkerPool::lose(Worker& worker, const std::string& why) {
  const bool parks = worker.park.state == ParkState::kParking;
  const std::string what = parks ? "the session could not be parked: "
                                 : "the session's GPU memory could not be restored: ";
  RCUDA_ERROR("the session of worker %d ends: %s%s", worker.pid, what.c_str(), why.c_str());
  worker.park.is_broken = true;
  stop_session(worker, what + why);
}

void WorkerPool::is_parked(Worker& worker) {
  Park& park = worker.park;
  enter(worker, ParkState::kParked);
  park.parked_at = park.since;
  ++totals_.parks;
  ++room_changes_;
  RCUDA_INFO("the session of worker %d (%s) is parked, %s: %s of GPU memory", worker.pid,
             worker.identity.user.c_str(), by_text(park.by, park.room_for).c_str(),
             bytes_text(sum_of(park.bytes)).c_str());
  if (audit_) audit_->control("park", park.by, static_cast<uint32_t>(worker.pid));
  park.by.reset();
  if (std::exchange(park.room_for, 0) != 0) ++totals_.parks_for_room;
}

void WorkerPool::lower_host_memory(Worker& worker, uint64_t kept) const {
  const uint64_t before = host_bytes(worker.park);
  worker.park.kept = kept;
  const Status lowered =
      allow_host_memory(worker, static_cast<int64_t>(kept) - static_cast<int64_t>(before));
  if (lowered.ok()) return;
  RCUDA_WARN("cannot lower the memory limit of worker %d, which was raised for parking: %s",
             worker.pid, lowered.message().c_str());
}

void WorkerPool::not_parked(Worker& worker, const std::string& why) {
  lower_host_memory(worker, worker.park.kept);
  refuse_park(worker, why);
}

void WorkerPool::is_awake(Worker& worker) {
  Park& park = worker.park;
  lower_host_memory(worker, park.way == ParkWay::kWorker ? park.keeps : park.kept);
  const Clock::duration time = Clock::now() - park.parked_at;
  totals_.parked_seconds +=
      static_cast<uint64_t>(std::chrono::floor<std::chrono::seconds>(time).count());
  ++totals_.wakes;
  RCUDA_INFO("the session of worker %d (%s), which was parked for %s, is awake, %s", worker.pid,
             worker.identity.user.c_str(), rounded_time_text(time).c_str(),
             park.by ? by_text(park.by).c_str() : "because its program needs the GPU");
  if (audit_) audit_->control("wake", park.by, static_cast<uint32_t>(worker.pid));
  park.wake_took = Clock::now() - park.since;
  enter(worker, ParkState::kActive);
  park.awake_at = Clock::now();
  park.tried_at = kNeverTried;
}

void WorkerPool::advance_parking(GpuMonitor& monitor) {
  end_helpers();
  const Clock::time_point now = Clock::now();
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.kill_at) continue;
    park_idle(worker);
    end_late_room(worker, now);
    const ParkState state = worker.park.state;
    if (state == ParkState::kResting || state == ParkState::kSuspending) advance_rest(worker);
    if (worker.park.state == ParkState::kMeasuring) {
      bool& is_measured = worker.park.is_measured;
      is_measured =
          is_measured || worker.park.way == ParkWay::kWorker || find_bytes(worker, monitor);
      start_parking(worker);
    }
    const bool is_late = worker.park.worker_moves() && now >= move_end(worker.park);
    if (is_late && !worker.park.is_broken)
      lose(worker, "the worker did not move its GPU memory in time");
  }
  if (next_room_ && now >= *next_room_) next_room_.reset();
  wake_waiting(monitor, now);
  keep_room();
}

WorkerPool::Clock::time_point WorkerPool::next_parking() const {
  Clock::time_point next = Clock::time_point::max();
  for (const ParkHelper& helper : helpers_) next = std::min(next, helper.deadline());
  if (next_room_) next = std::min(next, *next_room_);
  for (const Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.kill_at) continue;
    const Park& park = worker.park;
    const bool is_due = park.state == ParkState::kMeasuring && !park.is_measured;
    if (is_due) next = std::min(next, park.since + kLongestMeasure);
    if (park.has_answered || park.state == ParkState::kSuspending) {
      next = std::min(next, Clock::now() + kRestPause);
    }
    if (park.keeps_room) next = std::min(next, park.room_asked + kLongestMeasure);
    if (park.worker_moves() && !park.is_broken) next = std::min(next, move_end(park));
    if (const auto due = park_due(worker)) next = std::min(next, *due);
    next = std::min(next, next_room_event(worker));
  }
  return next;
}

bool WorkerPool::has_helper(pid_t process) const {
  return std::ranges::any_of(helpers_,
                             [&](const ParkHelper& helper) { return helper.pid() == process; });
}

}  // namespace rcuda::server
