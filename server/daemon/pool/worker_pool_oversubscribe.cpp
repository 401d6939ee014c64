// Oversubscription (docs/parking.md#oversubscription): sessions may hold more memory than their
// GPUs have. Idle sessions are parked (room_policy.h) if an allocation does not fit, or if a
// session that wakes or a worker that starts needs room. All sessions that wait for room are in one
// queue (wake_waiting()). The start of a worker comes last.
#include <algorithm>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/units.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

using namespace std::chrono_literals;

// How long a session that is to make room may take to come to rest. The time is short, because the
// session's worker may itself be in a call that waits for this room.
constexpr auto kRestPatience = 500ms;
// An allocation waits for other sessions to become idle. It waits for the time stay_awake, but at
// most kStayPatience, and then for kIdlePatience.
constexpr auto kIdlePatience = 1s;
constexpr std::chrono::nanoseconds kStayPatience = 10s;
// A worker reports the memory of its session only some time after it has answered the program. So
// within this time after a wish for room, the wish is not refused even if the other sessions seem
// to hold too little memory: they may hold memory that is not reported yet.
constexpr auto kReportTime = 100ms;
// The least time between two messages of a worker about room.
constexpr auto kAskPause = 1ms;
// If a session could not make room, because it was being parked or could not be parked, it is tried
// again after this pause.
constexpr auto kBusyPause = 100ms;
// How long a worker may take to use the room that was made for it. Other sessions wait meanwhile.
constexpr auto kUsePatience = 1s;
// The room that is made for the context of a worker that starts: kContextBytes (a context takes
// some 500 MB on an H200), but at most 1/kContextPart of the GPU's memory. If a worker needs more,
// the start of the next worker makes more room.
constexpr uint64_t kContextBytes = uint64_t{512} << 20;
constexpr uint64_t kContextPart = 16;
// Thrashing: within kThrashTime, kThrashCount sessions are displaced too early. A session is
// displaced too early if it was awake for less than kThrashFactor times the duration of its wake.
constexpr size_t kThrashCount = 10;
constexpr auto kThrashTime = 60s;
constexpr int kThrashFactor = 4;
constexpr auto kThrashPause = 10min;  // between two lines of the log

}  // namespace

bool WorkerPool::is_oversubscribed(const Worker& worker) const {
  return settings_.oversubscribe.get() > 1 && worker.work.has_value() &&
         (worker.identity.lease.empty() || worker.identity.lease_oversubscribes);
}

// Whether the daemon reads the worker's messages now. A worker of an oversubscribed session may ask
// for room at any time, but not so often that it keeps the daemon busy.
bool WorkerPool::reads(const Worker& worker) const {
  return worker.reads_reports || (worker.is(State::kBusy) && settings_.oversubscribe.get() > 1 &&
                                  Clock::now() >= worker.park.asks_from);
}

uint32_t WorkerPool::priority_of(const Worker& worker) {
  return worker.permit ? worker.permit->limits().priority : 0;
}

void WorkerPool::read_room(Worker& worker, const ParkAnswer& answer) {
  using What = ParkAnswer::What;
  Park& park = worker.park;
  park.asks_from = Clock::now() + kAskPause;
  if (answer.what == What::kRoomUsed) return park.wish.reset();
  const bool wants = answer.what == What::kRoomWanted;
  const std::vector<uint32_t>& devices = worker.session.devices;
  const auto device = answer.bytes.empty()
                          ? devices.end()
                          : std::ranges::find(devices, answer.bytes.front(),
                                              [](uint32_t ordinal) { return uint64_t{ordinal}; });
  if (device == devices.end() || answer.bytes.size() != (wants ? 3u : 2u) ||
      !is_oversubscribed(worker)) {
    return send_step(worker, ParkStep::What::kRoom, 0);
  }
  if (!wants) {
    const uint64_t more = could_free(worker, *device, answer.bytes[1]);
    return send_step(worker, ParkStep::What::kRoom, more);
  }
  const uint64_t bytes = answer.bytes[1], free = answer.bytes[2];
  if (bytes > memory_of(*device)) return send_step(worker, ParkStep::What::kRoom, 0);
  Park::Wish wish{.device = *device,
                  .bytes = bytes,
                  .missing = bytes > free ? bytes - free : bytes,
                  .since = Clock::now(),
                  .room_changes = room_changes_,
                  .seen_changes = room_changes_};
  if (park.wish) wish.since = park.wish->since;  // the room was too small: the wish keeps its place
  park.wish = wish;
}

// The bytes of a device that the session has, on the GPU or in the host's memory.
uint64_t WorkerPool::has_on(const Worker& worker, uint32_t device) const {
  const std::vector<uint32_t>& devices = worker.session.devices;
  if (!worker.is(State::kBusy) || std::ranges::find(devices, device) == devices.end()) return 0;
  if (is_away(worker.park.state)) {
    const auto bytes = worker.park.bytes.find(device);
    return bytes == worker.park.bytes.end() ? 0 : bytes->second;
  }
  return std::min(worker.work ? worker.work->held(device) : 0, memory_of(device));
}

// How many more bytes of a device the sessions may have together (setting oversubscribe).
uint64_t WorkerPool::left_of(uint32_t device) const {
  const double most = settings_.oversubscribe.get() * static_cast<double>(memory_of(device));
  uint64_t left = static_cast<uint64_t>(most);
  for (const Worker& worker : workers_) left -= std::min(left, has_on(worker, device));
  return left;
}

// The free bytes of a device by the sessions' own counts.
uint64_t WorkerPool::counted_free(uint32_t device) const {
  uint64_t free = memory_of(device);
  for (const Worker& worker : workers_) {
    if (!is_away(worker.park.state)) free -= std::min(free, has_on(worker, device));
  }
  return free;
}

// The sessions that could be parked to make room for `needy`, in groups that must be parked
// together.
WorkerPool::RoomGroups WorkerPool::room_groups(const std::vector<Worker*>& needy) {
  const Clock::time_point now = Clock::now();
  const auto may_be_parked = [&](const Worker& worker) {
    const Park& park = worker.park;
    return is_oversubscribed(worker) && !is_away(park.state) && !park.wish &&
           !worker.shares_outside && now >= park.cannot_until;
  };
  RoomGroups groups;
  std::set<const Worker*> seen(needy.begin(), needy.end());
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.kill_at || seen.contains(&worker)) continue;
    RoomCandidate all;
    bool may = true;
    for (const Worker* const member : connected_with(worker)) {
      may = may && may_be_parked(*member) && std::ranges::find(needy, member) == needy.end();
      seen.insert(member);
      if (!may) continue;
      // The worker writes this time, so it may have any value, even in the future.
      const auto used = Clock::time_point(std::chrono::nanoseconds(member->work->used_at()));
      all.priority = std::max(all.priority, priority_of(*member));
      all.used_at = std::max(all.used_at, std::min(used, now));
      const bool is_busy = member->park.state != ParkState::kActive || member->park.owes_answer;
      all.busy_until = std::max(
          {all.busy_until, member->park.busy_until, is_busy ? now + kBusyPause : RoomTime()});
      all.stays_until = std::max(all.stays_until, std::max(member->since, member->park.awake_at) +
                                                      settings_.stay_awake.get());
      for (const uint32_t device : member->session.devices) {
        all.bytes[device] += has_on(*member, device);
      }
    }
    if (!may) continue;
    groups.firsts.push_back(&worker);
    groups.candidates.push_back(std::move(all));
  }
  return groups;
}

// How many bytes of a device the session could get by parks of other sessions, in addition to the
// `free` bytes and within the setting oversubscribe.
uint64_t WorkerPool::could_free(Worker& worker, uint32_t device, uint64_t free) {
  uint64_t bytes = 0;
  for (RoomCandidate& candidate : room_groups({&worker}).candidates) {
    bytes += candidate.bytes[device];
  }
  const uint64_t left = left_of(device);
  return std::min(bytes, left - std::min(left, free));
}

// Begins to park sessions to make room for `needy`, if this can free enough. `needy` is empty for a
// worker that starts.
RoomChoice WorkerPool::make_room(const std::vector<Worker*>& needy, const RoomNeed& need,
                                 Clock::time_point now) {
  if (!std::ranges::all_of(needy, [&](const Worker* one) { return is_oversubscribed(*one); })) {
    return {};
  }
  RoomGroups groups = room_groups(needy);
  RoomChoice choice = choose_victims(groups.candidates, need, now);
  std::chrono::milliseconds wait{0};
  if (choice.victims.empty() && settings_.preempt.get()) {
    for (size_t i = 0; i < groups.firsts.size(); ++i) {
      RoomCandidate& candidate = groups.candidates[i];
      if (candidate.priority < need.priority) {
        candidate.busy_until = groups.firsts[i]->park.preempt_after;
      }
    }
    RoomChoice preempted = choose_victims(groups.candidates, need, now);
    if (!preempted.victims.empty()) {
      choice = std::move(preempted);
      wait = std::max(settings_.preempt_wait.milliseconds(), std::chrono::milliseconds(1));
    }
  }
  const bool any = !choice.victims.empty();
  std::erase_if(choice.victims, [&](size_t victim) {
    Worker& first = *groups.firsts[victim];
    const Status begun = begin_park(first, std::nullopt, wait);
    if (!begun.ok()) {
      RCUDA_DEBUG("%s", begun.message().c_str());
      first.park.busy_until = first.park.preempt_after = now + kBusyPause;
      return true;
    }
    for (Worker* const member : group_of(first)) {
      member->park.room_for = needy.empty() ? Park::kNewWorker : needy.front()->pid;
      note_displaced(*member, now);
    }
    return false;
  });
  if (any && choice.victims.empty()) choice.later = now + kBusyPause;
  return choice;
}

void WorkerPool::look_later(const std::vector<Worker*>& members, Clock::time_point at) {
  for (Worker* const member : members) {
    member->park.keeps_room = false;
    member->park.room_asked = at;
  }
  next_room_ = std::min(next_room_.value_or(at), at);
}

// Whether the GPUs have room for `members`, sessions that wake together. If they have none and
// `may_displace` is true, parks other sessions, and the members keep their claim to the room
// meanwhile. If no session is parked for them, the members drop the claim and look again later.
bool WorkerPool::has_room(const std::vector<Worker*>& members, GpuMonitor& monitor,
                          Clock::time_point now, bool may_displace) {
  Park& first = members.front()->park;
  std::shared_ptr<const GpuSample> sample;
  // While NVML hangs, the session waits: a restore that finds no room would lose the memory.
  if (!find_sample(monitor, first.room_asked, &sample)) {
    if (now >= first.room_asked + kLongestMeasure) look_later(members, now + kLongestMeasure);
    return false;
  }
  RoomNeed need;
  std::map<uint32_t, uint64_t> needs;
  for (const Worker* const member : members) {
    need.priority = std::max(need.priority, priority_of(*member));
    for (const auto& [ordinal, bytes] : member->park.bytes) needs[ordinal] += bytes;
  }
  for (const auto& [ordinal, bytes] : needs) {
    const GpuSample::Gpu* const gpu = gpu_of(sample.get(), ordinal);
    const bool is_known = gpu && gpu->told.total_bytes != 0;
    // Without NVML's figures, the wake itself finds out whether there is room. On an oversubscribed
    // GPU, the sessions' own counts decide, because sessions may have to be parked first.
    if (!is_known && !is_oversubscribed(*members.front())) continue;
    const uint64_t used = is_known ? gpu->told.used_bytes + gpu->told.reserved_bytes : 0;
    const uint64_t free = is_known ? gpu->told.total_bytes - std::min(used, gpu->told.total_bytes)
                                   : counted_free(ordinal);
    if (free < bytes) need.missing[ordinal] = bytes - free;
  }
  if (need.missing.empty()) return true;
  if (!may_displace) {
    look_later(members, now + kRoomPause);
    return false;
  }
  const RoomChoice others = make_room(members, need, now);
  first.is_hopeless = others.victims.empty() && !others.later;
  // While the victims are being parked, this session keeps its claim (keeps_room).
  if (others.victims.empty()) {
    look_later(members, std::min(others.later.value_or(RoomTime::max()), now + kRoomPause));
  }
  return false;
}

// Lets the worker allocate again when sessions have been parked or have ended since it asked. If no
// session can be parked soon, the program gets CUDA_ERROR_OUT_OF_MEMORY.
void WorkerPool::serve_wish(Worker& worker, Clock::time_point now, bool may_displace) {
  Park::Wish& wish = *worker.park.wish;
  worker.park.is_hopeless = false;
  if (wish.room_changes != room_changes_ && may_displace) {
    wish.granted_at = now;
    return send_step(worker, ParkStep::What::kRoom, 1);
  }
  if (std::exchange(wish.seen_changes, room_changes_) != room_changes_) wish.refuse_at.reset();
  if (left_of(wish.device) < wish.bytes) {
    return refuse_wish(
        worker, "the sessions together would hold more than the setting oversubscribe permits (" +
                    settings_.oversubscribe.text() + " times the GPU's memory)");
  }
  if (!wish.refuse_at) {
    wish.refuse_at = now + std::min(settings_.stay_awake.get(), kStayPatience) + kIdlePatience;
  }
  if (may_displace) {
    const RoomNeed need{priority_of(worker), {{wish.device, wish.missing}}};
    const RoomChoice others = make_room({&worker}, need, now);
    if (!others.victims.empty()) return;
    if (!others.later && now >= wish.since + kReportTime) {
      return refuse_wish(worker, "the sessions that can be parked do not hold enough memory");
    }
    const Clock::time_point later = others.later.value_or(wish.since + kReportTime);
    next_room_ = std::min(next_room_.value_or(later), later);
  }
  if (now >= *wish.refuse_at) {
    refuse_wish(worker, "each session that could be parked has work, or has just woken");
  }
}

uint64_t WorkerPool::context_bytes(uint32_t device) const {
  return std::min(kContextBytes, memory_of(device) / kContextPart);
}

// Parks sessions for a worker that found no room for its context, and lets refill() start the next
// worker when these sessions are parked. If no session can be parked, refill() tries again after
// its pause.
void WorkerPool::serve_start(Clock::time_point now, bool may_displace) {
  if (!start_priority_) return;
  StartWish& wish = *start_wish_;
  if (std::exchange(wish.room_changes, room_changes_) != room_changes_) {
    retry_at_ = std::min(retry_at_, now);
  } else if (may_displace && now < retry_at_) {
    const RoomNeed need{*start_priority_, {{wish.device, context_bytes(wish.device)}}};
    const RoomChoice others = make_room({}, need, now);
    if (others.later) next_room_ = std::min(next_room_.value_or(*others.later), *others.later);
  }
}

void WorkerPool::refuse_wish(Worker& worker, const std::string& why) {
  const Park::Wish& wish = *worker.park.wish;
  RCUDA_INFO("the session of worker %d (%s) cannot allocate %s on GPU %u: %s", worker.pid,
             worker.identity.user.c_str(), bytes_text(wish.bytes).c_str(), wish.device,
             why.c_str());
  ++totals_.room_refusals;
  worker.park.wish.reset();
  worker.park.is_hopeless = true;
  send_step(worker, ParkStep::What::kRoom, 0);
}

// The devices of sessions that wake or make room, and the devices with room that a worker was
// granted and is about to use.
std::set<uint32_t> WorkerPool::moving_devices() const {
  std::set<uint32_t> devices;
  for (const Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || worker.kill_at) continue;
    const Park& park = worker.park;
    const bool wakes = park.state == ParkState::kWaking && !park.is_broken;
    if (wakes || park.room_for != 0) {
      devices.insert(worker.session.devices.begin(), worker.session.devices.end());
    }
    if (park.wish && park.wish->granted_at) devices.insert(park.wish->device);
  }
  return devices;
}

// Writes into the WorkPage of each session how many bytes of its devices must stay free for others:
// for sessions that wake, look for room to wake, or were granted room, and for a worker that
// starts. An allocation that would not leave these bytes free has to wait
// (MemoryMeter::give_way()). The bytes are written before the daemon looks for room. They stay
// until the wake, the allocation or the start is over, or until a session that found no room waits
// to look again (look_later()).
void WorkerPool::keep_room() {
  const auto keeps = [](const Worker& worker) {
    const Park& park = worker.park;
    if (!worker.is(State::kBusy) || worker.kill_at) return DeviceBytes();
    if (park.wish && park.wish->granted_at) {
      return DeviceBytes{{park.wish->device, park.wish->bytes}};
    }
    const bool wakes = park.state == ParkState::kWaking && !park.is_broken;
    return park.keeps_room || wakes ? park.bytes : DeviceBytes();
  };
  std::map<uint32_t, uint64_t> kept;
  if (start_wish_ && start_priority_) {
    kept[start_wish_->device] = context_bytes(start_wish_->device);
  }
  for (const Worker& worker : workers_) {
    for (const auto& [device, bytes] : keeps(worker)) kept[device] += bytes;
  }
  for (Worker& worker : workers_) {
    if (!worker.is(State::kBusy) || !worker.work) continue;
    DeviceBytes own = keeps(worker);
    for (const uint32_t device : worker.session.devices) {
      worker.work->keep_free(device, kept[device] - own[device]);
    }
  }
}

// When a session that makes room must have come to rest.
WorkerPool::Clock::time_point WorkerPool::rest_end(const Worker& worker) const {
  const Park& park = worker.park;
  const bool rests = park.room_for != 0 && park.state == ParkState::kResting && !park.has_answered;
  if (!rests) return Clock::time_point::max();
  const auto wait =
      park.is_preempted ? Clock::duration(settings_.preempt_wait.get()) : Clock::duration(0);
  return park.since + wait + kRestPatience;
}

// Stops waiting for a session that does not make room in time, or for a worker that does not use
// its room in time.
void WorkerPool::end_late_room(Worker& worker, Clock::time_point now) {
  if (now >= rest_end(worker)) {
    refuse_group(worker, "its worker did not stop calling the driver in time");
  }
  const std::optional<Park::Wish>& wish = worker.park.wish;
  if (wish && wish->granted_at && now >= *wish->granted_at + kUsePatience) worker.park.wish.reset();
}

WorkerPool::Clock::time_point WorkerPool::next_room_event(const Worker& worker) const {
  Clock::time_point next = rest_end(worker);
  if (worker.park.asks_from > Clock::now()) next = std::min(next, worker.park.asks_from);
  if (const std::optional<Park::Wish>& wish = worker.park.wish) {
    if (wish->granted_at) next = std::min(next, *wish->granted_at + kUsePatience);
    // After refuse_at, the wish needs no timer: the end of the moves on its device wakes the loop,
    // which then refuses the wish.
    const bool is_ahead = wish->refuse_at && *wish->refuse_at > Clock::now();
    if (!wish->granted_at && is_ahead) next = std::min(next, *wish->refuse_at);
  }
  return next;
}

void WorkerPool::note_displaced(const Worker& worker, Clock::time_point now) {
  const Park& park = worker.park;
  if (park.awake_at == Clock::time_point() ||
      now - park.awake_at >= kThrashFactor * park.wake_took) {
    return;
  }
  displaced_.push_back(now);
  while (now - displaced_.front() > kThrashTime) displaced_.pop_front();
  const bool was_reported =
      thrashing_reported_ != Clock::time_point() && now - thrashing_reported_ < kThrashPause;
  if (displaced_.size() < kThrashCount || was_reported) return;
  thrashing_reported_ = now;
  RCUDA_WARN(
      "sessions displace each other: %zu times within the last minute, a session was parked "
      "shortly after it woke, so the GPUs spend much time on moving memory. Raise stay_awake (%s), "
      "lower oversubscribe (%s), or run fewer programs at the same time",
      displaced_.size(), settings_.stay_awake.text().c_str(),
      settings_.oversubscribe.text().c_str());
}

}  // namespace rcuda::server
