// The steps of a park. Sessions that share memory or events, and sessions with ranks of one NCCL
// communicator, are parked together: each takes a step of parking only when all of them can, and
// one helper moves the memory of all. If one of them cannot be parked, none is parked.
#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "common/base/log.h"
#include "common/base/socket_io.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

// How long sessions at rest wait for the other sessions of their group. Their programs may wait
// meanwhile.
constexpr auto kLongestRest = std::chrono::seconds(5);
// How long NCCL may take to release its memory. NCCL needs all ranks of a communicator for that.
constexpr auto kLongestSuspend = std::chrono::minutes(1);
// The most lookups that may wait until one parked session is awake.
constexpr size_t kMostCallers = 64;

}  // namespace

// Passes on a lookup, and records that the two workers share memory from now on.
bool WorkerPool::pass_on_lookup(Worker& exporter, ExportCall call, UniqueFd* socket) {
  const Result<ucred> peer = peer_credentials(socket->get());
  const pid_t importer = peer.ok() ? peer->pid : 0;
  const bool is_here = std::ranges::any_of(workers_, [&](const Worker& worker) {
    return worker.is(State::kBusy) && worker.pid == importer;
  });
  if (is_here) exporter.shares_with.insert(importer);
  exporter.shares_outside = exporter.shares_outside || !is_here;
  if (exporter.park.state == ParkState::kActive) return pass_on(exporter, std::move(call), socket);
  // The driver of a parked process cannot share its memory, so the lookup waits for the wake.
  if (exporter.callers.size() == kMostCallers) return false;
  exporter.callers.emplace_back(std::move(call), std::move(*socket));
  send_step(exporter, ParkStep::What::kWake);
  return true;
}

void WorkerPool::forget_shares(const Worker& ended) {
  for (Worker& worker : workers_) worker.shares_with.erase(ended.pid);
}

bool WorkerPool::are_connected(const Worker& one, const std::unordered_set<uint64_t>& tags,
                               const Worker& other) {
  if (one.shares_with.contains(other.pid) || other.shares_with.contains(one.pid)) return true;
  if (tags.empty() || !other.work || !same_user(one.identity, other.identity)) return false;
  return std::ranges::any_of(other.work->communicators(),
                             [&](uint64_t tag) { return tags.contains(tag); });
}

// The session, and the sessions that must be parked with it.
std::vector<WorkerPool::Worker*> WorkerPool::connected_with(Worker& first) {
  std::vector<Worker*> members{&first};
  for (size_t i = 0; i < members.size(); ++i) {
    std::unordered_set<uint64_t> tags;
    if (members[i]->work) {
      for (const uint64_t tag : members[i]->work->communicators()) tags.insert(tag);
    }
    for (Worker& other : workers_) {
      const bool is_member = std::ranges::find(members, &other) != members.end();
      if (is_member || !other.is(State::kBusy) || other.kill_at) continue;
      if (are_connected(*members[i], tags, other)) members.push_back(&other);
    }
  }
  return members;
}

// The session, and the sessions that are parked with it now.
std::vector<WorkerPool::Worker*> WorkerPool::group_of(const Worker& worker) {
  std::vector<Worker*> members;
  for (Worker& other : workers_) {
    const bool is_other = other.park.group == worker.park.group && worker.park.group != 0 &&
                          other.is(State::kBusy) && !other.kill_at;
    if (is_other || &other == &worker) members.push_back(&other);
  }
  return members;
}

// kUnavailable: the session, or a session that is connected with it, cannot be parked now.
Status WorkerPool::begin_park(Worker& worker, const std::optional<Identity>& by,
                              std::chrono::milliseconds wait) {
  const std::vector<Worker*> members = connected_with(worker);
  for (const Worker* const member : members) {
    const std::string who =
        "the session of worker " + std::to_string(member->pid) +
        (member == &worker ? ""
                           : " (it shares memory or NCCL ranks with the session of worker " +
                                 std::to_string(worker.pid) + ")");
    if (member->shares_outside) {
      return {
          Code::kUnavailable,
          who + " shares memory or events with sessions of other servers, so it cannot be parked"};
    }
    if (member->park.state != ParkState::kActive) {
      return {Code::kUnavailable,
              who + " is " + to_string(member->park.state) + " already: rcuda-smi shows its state"};
    }
    if (member->park.owes_answer) {
      return {Code::kUnavailable,
              who + " has not answered an earlier attempt to park it: try again later"};
    }
  }
  const uint64_t group = ++groups_;
  for (Worker* const member : members) {
    member->park.group = group;
    member->park.by = by;
    member->park.refused.clear();
    enter(*member, ParkState::kResting);
    member->park.is_preempted = wait.count() != 0;
    send_step(*member, ParkStep::What::kRest, static_cast<uint64_t>(wait.count()));
  }
  return {};
}

// Takes the next step if all sessions of the group have answered the last step.
void WorkerPool::advance_rest(Worker& worker) {
  const std::vector<Worker*> members = group_of(worker);
  const ParkState state = worker.park.state;
  const auto waits = std::ranges::find_if(members, [&](const Worker* member) {
    return member->park.state != state || !member->park.has_answered;
  });
  if (waits != members.end()) {
    const auto age = Clock::now() - worker.park.since;
    if (state == ParkState::kSuspending) {
      if (age < kLongestSuspend) return;
      return refuse_group(**waits, "its NCCL communicators did not suspend in time");
    }
    // How long this session, which is at rest, waits for the others of its group. Preempted
    // sessions first finish their queued work, for preempt_wait at most. rest_end() limits a
    // session that makes room and is not at rest yet.
    Clock::duration limit = kLongestRest;
    if (worker.park.is_preempted) {
      limit = std::max<Clock::duration>(limit, settings_.preempt_wait.get());
    }
    if (!worker.park.has_answered || age < limit) return;
    return refuse_group(**waits, "its worker did not stop calling the driver in time");
  }
  if (state == ParkState::kSuspending) {
    for (Worker* const member : members) enter(*member, ParkState::kMeasuring);
    return;
  }
  ParkStep suspend{ParkStep::What::kSuspend};
  for (const Worker* const member : members) {
    if (!member->work) continue;
    const std::vector<uint64_t> tags = member->work->communicators();
    suspend.tags.insert(suspend.tags.end(), tags.begin(), tags.end());
  }
  if (suspend.tags.size() > ParkStep::kMostTags) {
    return refuse_group(worker,
                        "it and the sessions that share its NCCL communicators "
                        "together have more than " +
                            std::to_string(ParkStep::kMostTags) + " ranks");
  }
  for (Worker* const member : members) {
    enter(*member, ParkState::kSuspending);
    send_step(*member, suspend);
  }
}

// Refuses the park of the whole group. `worker`: the session that cannot be parked.
void WorkerPool::refuse_group(Worker& worker, const std::string& why) {
  const std::string others = "it can be parked only together with the session of worker " +
                             std::to_string(worker.pid) + ", which is not parked: " + why;
  for (Worker* const member : group_of(worker)) {
    const bool is_asked =
        member->park.state == ParkState::kResting || member->park.state == ParkState::kSuspending;
    member->park.owes_answer = is_asked && !member->park.has_answered;
    send_step(*member, ParkStep{ParkStep::What::kStay});
    refuse_park(*member, member == &worker ? why : others);
  }
}

// Starts to move the memory when the sizes of all sessions of the group are known.
void WorkerPool::start_parking(Worker& worker) {
  const std::vector<Worker*> members = group_of(worker);
  const bool is_ready = std::ranges::all_of(members, [](const Worker* member) {
    return member->park.state == ParkState::kMeasuring && member->park.is_measured;
  });
  if (!is_ready) return;
  Status ready = check_host_memory(members);
  size_t raised = 0;
  while (ready.ok() && raised < members.size()) {
    ready = allow_host_memory(*members[raised],
                              static_cast<int64_t>(more_host_bytes(members[raised]->park)));
    if (ready.ok()) ++raised;
  }
  if (ready.ok()) ready = start_moving(members, ParkTask::kPark);
  if (ready.ok()) {
    for (Worker* const member : members) enter(*member, ParkState::kParking);
    return;
  }
  while (raised > 0) {
    --raised;
    (void)allow_host_memory(*members[raised],
                            -static_cast<int64_t>(more_host_bytes(members[raised]->park)));
  }
  refuse_group(worker, ready.context());
}

}  // namespace rcuda::server
